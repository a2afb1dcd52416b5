//! `cargo +nightly fuzz run --features libfuzzer stream`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::stream::feed(bytes));
