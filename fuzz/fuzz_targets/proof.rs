//! `cargo +nightly fuzz run --features libfuzzer proof`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::proof::feed(bytes));
