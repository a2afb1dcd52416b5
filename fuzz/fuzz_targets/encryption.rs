//! `cargo +nightly fuzz run --features libfuzzer encryption`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::encryption::feed(bytes));
