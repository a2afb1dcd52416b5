//! `cargo +nightly fuzz run --features libfuzzer record`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::record::feed(bytes));
