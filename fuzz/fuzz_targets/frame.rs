//! `cargo +nightly fuzz run --features libfuzzer frame`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::frame::feed(bytes));
