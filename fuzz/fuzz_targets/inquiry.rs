//! `cargo +nightly fuzz run --features libfuzzer inquiry`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::inquiry::feed(bytes));
