//! `cargo +nightly fuzz run --features libfuzzer sharded_object`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::sharded_object::feed(bytes));
