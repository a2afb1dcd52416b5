//! `cargo +nightly fuzz run --features libfuzzer config`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::config::feed(bytes));
