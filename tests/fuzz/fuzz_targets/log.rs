//! Any bytes as an append-only log.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrfs_harness::parsers::log(bytes));
