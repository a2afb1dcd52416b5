//! `cargo +nightly fuzz run --features libfuzzer objects`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::objects::feed(bytes));
