//! Any bytes as messages of daemons, tools and coordinators.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrfs_harness::parsers::wire(bytes));
