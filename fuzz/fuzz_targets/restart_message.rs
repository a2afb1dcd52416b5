//! `cargo +nightly fuzz run --features libfuzzer restart_message`
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| squall_fuzz::restart_message::feed(bytes));
