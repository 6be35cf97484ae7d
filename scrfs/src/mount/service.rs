//! What the service manager is told: systemd's `Type=notify`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where programs find the socket's name.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Says that the mount answers, to the socket of this name: a path, or an abstract name after `@`.
///
/// # Errors
/// Nobody listens there.
pub fn ready(socket: &OsStr) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1\n", &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_arrives_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("scrfs-test-{}", std::process::id());
        let listeners = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (listener, socket) in listeners {
            ready(&socket).unwrap();
            let mut word = [0; 16];
            let bytes = listener.recv(&mut word).unwrap();
            assert_eq!(&word[..bytes], b"READY=1\n");
        }
        assert!(ready(OsStr::new("/no/such/socket")).is_err());
    }
}
