//! The lock of the index: a file that names the epoch of its holder.
//!
//! A holder of a lower epoch is gone, or may change nothing any more: its lock is taken over. One of a higher epoch is
//! respected. The holder looks for newer epochs again right before it writes, so that a lock that was taken over
//! does no harm.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use crate::ids::Epoch;

use super::directory::{PfsError, Prefix, Result, read_bounded};

/// Tries against another that takes over the same stale lock.
const TRIES: usize = 16;

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
        let mut holder = String::new();
        for _ in 0..TRIES {
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(mut file) => {
                    file.write_all(content.as_bytes()).map_err(PfsError::io(&path, "write"))?;
                    file.sync_all().map_err(PfsError::io(&path, "fsync"))?;
                    return Ok(Self { path, content });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(PfsError::io(&path, "create")(e)),
            }
            let Some(bytes) = read_bounded(&path)? else { continue };
            holder = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).trim().replace('\n', ", ");
            // One that is not (yet) readable was left by a crash between create and write, or is of this very moment; an
            // epoch has one worker, so it is not ours.
            if epoch_of(&bytes).unwrap_or_default() > prefix.epoch {
                break;
            }
            tracing::warn!(holder, "the lock of an earlier start is taken over");
            super::directory::remove_file(&path)?;
        }
        Err(PfsError::Locked { path, holder })
    }
}

fn epoch_of(content: &[u8]) -> Option<Epoch> {
    let line = std::str::from_utf8(content).ok()?.lines().next()?;
    line.strip_prefix("epoch ")?.parse().ok().map(Epoch)
}

impl Drop for Lock {
    fn drop(&mut self) {
        let ours = fs::read(&self.path).is_ok_and(|content| content == self.content.as_bytes());
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the lock could not be removed; the next start takes it over");
        }
    }
}
