//! Any tree as every record. What is accepted says the same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scrfs::hash::codec::unpack;
use scrfs::record::RecordKind;

fuzz_target!(|bytes: &[u8]| {
    let Ok((tree, _)) = unpack(bytes, 0) else { return };
    for kind in RecordKind::ALL {
        if let Ok(record) = kind.read(&tree) {
            assert_eq!(kind.read(&record.to_hash()).as_ref(), Ok(&record));
        }
    }
});
