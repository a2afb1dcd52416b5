//! `cargo +nightly fuzz run --features libfuzzer shm`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::shm::feed(bytes));
