//! `cargo +nightly fuzz run --features libfuzzer external`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::external::feed(bytes));
