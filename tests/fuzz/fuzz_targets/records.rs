//! Any tree as every record, and as a dataset's catalog.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrfs_harness::parsers::records(bytes));
