//! Any bytes as a hash file, and as a packed tree (random bytes do not get past the CRC).

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrfs_harness::parsers::hash_file(bytes));
