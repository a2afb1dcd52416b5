//! `cargo +nightly fuzz run --features libfuzzer address`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::address::feed(bytes));
