//! `cargo +nightly fuzz run --features libfuzzer metrics`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::metrics::feed(bytes));
