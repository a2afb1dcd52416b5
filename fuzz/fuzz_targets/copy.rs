//! `cargo +nightly fuzz run --features libfuzzer copy`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::copy::feed(bytes));
