//! `cargo +nightly fuzz run --features libfuzzer bulk`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::bulk::feed(bytes));
