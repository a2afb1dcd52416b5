//! `cargo +nightly fuzz run --features libfuzzer bootstrap`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::bootstrap::feed(bytes));
