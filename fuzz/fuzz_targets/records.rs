//! `cargo +nightly fuzz run --features libfuzzer records`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::records::feed(bytes));
