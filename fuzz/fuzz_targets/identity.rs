//! `cargo +nightly fuzz run --features libfuzzer identity`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::identity::feed(bytes));
