//! `cargo +nightly fuzz run --features libfuzzer desk`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::desk::feed(bytes));
