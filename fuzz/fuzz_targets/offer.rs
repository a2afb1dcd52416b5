//! `cargo +nightly fuzz run --features libfuzzer offer`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::offer::feed(bytes));
