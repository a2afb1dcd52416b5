//! `cargo +nightly fuzz run --features libfuzzer register`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::register::feed(bytes));
