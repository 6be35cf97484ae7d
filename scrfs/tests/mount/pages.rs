//! What the kernel keeps of files that the daemon serves, from one open to the next.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;

use super::takeover::replace_worker;
use super::{Mounted, in_namespace, wait_until};

const BYTES: usize = 1 << 20;

/// Bytes of the file in the page cache once it has been opened.
fn resident(m: &Mounted) -> usize {
    let mut fincore = Command::new("timeout");
    fincore.args(["-k", "2", "20", "fincore", "--bytes", "--noheadings", "--output", "RES"]).arg(m.at("f"));
    let output = fincore.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

/// Reads it until its pages stay.
fn read_in(m: &Mounted, wanted: &[u8]) {
    wait_until("its pages to stay", || {
        assert!(fs::read(m.at("f")).unwrap() == wanted);
        resident(m) == BYTES
    });
}

#[test]
fn pages_stay_while_only_the_mount_changes_the_file() {
    in_namespace(&["--no-passthrough"], |m| {
        let mut bytes = vec![7; BYTES];
        fs::write(m.at("f"), &bytes).unwrap();
        read_in(m, &bytes);
        // Changes through the mount are in them.
        let file = OpenOptions::new().write(true).open(m.at("f")).unwrap();
        for (offset, byte) in [(0, 1), (BYTES / 2, 2), (BYTES - 1, 3)] {
            file.write_all_at(&[byte], offset as u64).unwrap();
            bytes[offset] = byte;
        }
        drop(file);
        read_in(m, &bytes);
        // Any other drops them, also one that leaves size and time as they were.
        let backing = m.dir.path().join("cache/root/scr.t/tree/f");
        let time = fs::metadata(&backing).unwrap().modified().unwrap();
        let file = OpenOptions::new().write(true).open(&backing).unwrap();
        file.write_all_at(&[9], 4096).unwrap();
        file.set_modified(time).unwrap();
        bytes[4096] = 9;
        assert!(fs::read(m.at("f")).unwrap() == bytes);
        read_in(m, &bytes);
        // So does another file in its place.
        bytes.fill(5);
        fs::write(m.at("g"), &bytes).unwrap();
        fs::rename(m.at("g"), m.at("f")).unwrap();
        assert!(fs::read(m.at("f")).unwrap() == bytes);
        // A successor knows nothing of what was.
        read_in(m, &bytes);
        replace_worker(m);
        assert_eq!(resident(m), 0);
        assert!(fs::read(m.at("f")).unwrap() == bytes);
    });
}

/// With `relatime` the first read after a write is the one that sets the access time.
#[test]
fn a_kept_page_hides_no_access_time() {
    in_namespace(&["--no-passthrough"], |m| {
        fs::write(m.at("f"), vec![7; BYTES]).unwrap();
        let written = fs::metadata(m.at("f")).unwrap();
        // Until the pages may stay as far as the file's changes go.
        std::thread::sleep(Duration::from_millis(150));
        drop(OpenOptions::new().write(true).open(m.at("f")).unwrap());
        fs::read(m.at("f")).unwrap();
        let read = fs::metadata(m.at("f")).unwrap();
        let of = |meta: &fs::Metadata| (meta.atime(), meta.atime_nsec());
        assert!(of(&read) > of(&written), "{written:?} {read:?}");
    });
}
