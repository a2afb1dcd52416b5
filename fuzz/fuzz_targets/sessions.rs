//! `cargo +nightly fuzz run --features libfuzzer sessions`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::sessions::feed(bytes));
