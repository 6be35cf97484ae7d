//! How far the kernel reads ahead where the worker serves the data: each request costs a round
//! through it, so they are to be large. FUSE's own setting ends at the kernel's 128 KiB; the device
//! of the mount (`/sys/class/bdi`) takes more.

use std::io;
use std::path::Path;

use super::table;

/// A request's size.
const KIB: u64 = 1024;

/// Has the kernel read `KIB` ahead in files of this mount. Only root may; without it the mount is
/// slower, no more.
pub(super) fn widen(mount_point: &Path) {
    match try_widen(mount_point) {
        Ok(()) => tracing::debug!(kib = KIB, "read-ahead is set"),
        Err(error) => tracing::debug!(%error, "read-ahead stays as it is"),
    }
}

fn try_widen(mount_point: &Path) -> io::Result<()> {
    let mounted = table::mounted_at(mount_point)?.ok_or(io::ErrorKind::NotFound)?;
    let path = Path::new("/sys/class/bdi").join(&mounted.device).join("read_ahead_kb");
    std::fs::write(path, KIB.to_string())
}
