//! `cargo +nightly fuzz run --features libfuzzer verbs`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::verbs::feed(bytes));
