//! `cargo +nightly fuzz run --features libfuzzer checkpoint`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::checkpoint::feed(bytes));
