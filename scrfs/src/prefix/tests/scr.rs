//! Prefixes that SCR wrote.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::EntryKind;
use crate::ids::{DatasetId, Epoch};

use super::{carry_out, catalog, prefix, read, survey};
use crate::prefix::worker::cause;
use crate::prefix::{PfsCause, PfsTask, StoredDataset};

/// All files below `directory`, with their bytes.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap_or_default());
        }
    }
    found
}

#[test]
fn nothing_is_written_where_scr_has_another_layout() {
    for (release, word) in [("scr-2011-04", "SCR of 2011"), ("scr-1.2", "SCR 1.2"), ("scr-3", "SCR 3")] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(release);
        let root = tempfile::tempdir().unwrap();
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg("-a").arg(golden.join("xor4/prefix")).arg(root.path()).status().unwrap().success());
        let root = root.path().join("prefix");
        let (prefix, before) = (prefix(&root, 5), files(&root));
        let stored = StoredDataset {
            id: DatasetId(3),
            epoch: Epoch(0),
            name: b"ckpt.3".to_vec(),
            directory: root.join("ckpt.3").into_os_string().into_encoded_bytes(),
            created_us: None,
            usable: true,
            current: true,
        };
        for task in [
            PfsTask::Survey,
            PfsTask::BeginFlush(Arc::new(catalog(9, b"nine"))),
            PfsTask::Publish(Arc::new(catalog(9, b"nine"))),
            PfsTask::ReadCatalog(stored.clone()),
            PfsTask::MarkFailed(stored),
            PfsTask::Halt { sealed: 1 },
            PfsTask::Post { host: "n0".into(), text: "x".into() },
        ] {
            let error = carry_out(&prefix, &task).unwrap_err();
            assert!(error.to_string().contains(word), "{task:?}: {error}");
            assert_eq!(cause(&prefix, &task, &error), PfsCause::Unavailable, "{task:?}");
        }
        assert_eq!(files(&root), before, "{release}");
    }
}

/// Every dataset of every prefix that SCR of 2013 and 1.1.8 wrote: names, sizes and CRCs are those
/// of the files that lie there.
#[test]
fn prefixes_of_scr_are_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut read_back = 0;
    for generation in ["scr-2013-08", "scr-1.1.8"] {
        for case in fs::read_dir(golden.join(generation)).unwrap() {
            let root = case.unwrap().path().join("prefix");
            if !root.is_dir() {
                continue;
            }
            let prefix = prefix(&root, 1);
            for stored in survey(&prefix).into_iter().filter(|stored| stored.usable) {
                let catalog = read(&prefix, &stored);
                assert_eq!(catalog.layout.members.len(), 4, "{stored:?}");
                assert_eq!(catalog.layout.members.iter().map(|m| m.files).sum::<u64>() % 4, 0);
                for entry in &catalog.entries {
                    if let EntryKind::File(file) = &entry.kind {
                        let data = fs::read(prefix.dataset(&stored.name).join(entry.path.as_path())).unwrap();
                        assert_eq!((file.size, file.crc), (data.len() as u64, crc32fast::hash(&data)));
                        read_back += 1;
                    }
                }
            }
        }
    }
    assert!(read_back >= 40, "only {read_back} files");
}
