//! `cargo +nightly fuzz run --features libfuzzer tcp`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::tcp::feed(bytes));
