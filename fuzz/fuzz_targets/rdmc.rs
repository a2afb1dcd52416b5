//! `cargo +nightly fuzz run --features libfuzzer rdmc`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::rdmc::feed(bytes));
