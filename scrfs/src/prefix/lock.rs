//! The lock of the index: a file that names the epoch of its holder.
//!
//! A holder of a lower epoch is gone, or may change nothing any more: its lock is taken over. One
//! of a higher epoch is respected. One of the same epoch is another worker's, where nodes publish
//! what they have saved, or a dead coordinator's: it is waited for, and taken over once it has not
//! changed for long. The holder looks for newer epochs, and whether the lock is still its own,
//! right before it writes, so that a lock that was taken over does no harm.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::ids::Epoch;
use crate::plain;

use super::directory::{PfsError, Prefix, Result, read_bounded};

/// Tries against another that takes over the same stale lock.
const TRIES: usize = 16;
/// Between two looks at a lock that is waited for: a PFS tells nobody when it goes.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// The lock, held until it is dropped.
pub(super) struct Lock {
    path: PathBuf,
    content: String,
}

impl Lock {
    /// Takes the lock of `prefix` for its epoch.
    pub(super) fn take(prefix: &Prefix) -> Result<Self> {
        prefix.newest()?;
        let path = prefix.state("index.lock");
        let content = format!("epoch {}\nhost {}\npid {}\n", prefix.epoch, prefix.host, std::process::id());
        let (mut holder, mut seen) = (String::new(), (Vec::new(), Instant::now()));
        let mut tries = 0;
        while tries < TRIES {
            match plain::make_file(&path) {
                Ok(mut file) => {
                    file.write_all(content.as_bytes()).map_err(PfsError::io(&path, "write"))?;
                    file.sync_all().map_err(PfsError::io(&path, "fsync"))?;
                    return Ok(Self { path, content });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(PfsError::io(&path, "create")(e)),
            }
            let Some(bytes) = read_bounded(&path)? else {
                tries += 1;
                continue;
            };
            holder = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim().replace('\n', ", ");
            let of = epoch_of(&bytes).unwrap_or_default();
            if of > prefix.epoch {
                break;
            }
            // One that is not (yet) readable was left by a crash between create and write, or is of
            // this very moment.
            let may_live = (of == prefix.epoch || bytes.is_empty()) && bytes != content.as_bytes();
            if may_live {
                if seen.0 != bytes {
                    seen = (bytes, Instant::now());
                }
                if seen.1.elapsed() < prefix.patience {
                    std::thread::sleep(POLL);
                    continue;
                }
            }
            tracing::warn!(holder, "the lock of one that is gone is taken over");
            super::directory::remove_file(&path)?;
            tries += 1;
        }
        Err(PfsError::Locked { path, holder })
    }

    /// Fails when another has taken it over.
    pub(super) fn is_held(&self) -> Result<()> {
        let found = read_bounded(&self.path)?.unwrap_or_default();
        if found == self.content.as_bytes() {
            return Ok(());
        }
        let holder = String::from_utf8_lossy(&found[..found.len().min(200)]).trim().replace('\n', ", ");
        Err(PfsError::Locked { path: self.path.clone(), holder })
    }
}

fn epoch_of(content: &[u8]) -> Option<Epoch> {
    let line = std::str::from_utf8(content).ok()?.lines().next()?;
    line.strip_prefix("epoch ")?.parse().ok().map(Epoch)
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_held().is_ok()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the lock could not be removed; the next start takes it over");
        }
    }
}
