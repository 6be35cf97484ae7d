//! Any bytes as a hash file, and as a packed tree (random bytes do not get past the CRC). What is accepted is written
//! again as it was, and no larger in memory than a small multiple of the input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scrfs::hash::codec::{pack, unpack};
use scrfs::hash::{decode_record, encode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok((tree, size)) = decode_record(bytes) {
        assert_eq!(encode(&tree), bytes[..size]);
    }
    if let Ok((tree, size)) = unpack(bytes, 0) {
        let mut again = Vec::new();
        pack(&tree, &mut again);
        assert_eq!(again, bytes[..size]);
        let _ = tree.to_string();
    }
});
