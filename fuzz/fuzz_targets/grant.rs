//! `cargo +nightly fuzz run --features libfuzzer grant`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::grant::feed(bytes));
