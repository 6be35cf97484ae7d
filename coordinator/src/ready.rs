//! Tells who started the coordinators that programs may start, and that they are to end
//! ([`scrfs::control::ready`]).
//!
//! Standard output belongs to this alone; everything else that a coordinator has to say goes to
//! standard error.

use std::fmt::Display;
use std::io::{self, Write};

/// Writes the line at once: it is shorter than what a pipe takes whole.
pub fn announce(out: &mut impl Write, word: &impl Display) -> io::Result<()> {
    out.write_all(format!("{word}\n").as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use scrfs::control::ready::Ready;
    use scrfs::ids::Epoch;

    #[test]
    fn it_is_one_write_of_one_line() {
        struct Writes(Vec<Vec<u8>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.to_vec());
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = Writes(Vec::new());
        announce(&mut out, &Ready { epoch: Epoch(3), current: Some(b"ck\n1".to_vec()) }).unwrap();
        assert_eq!(out.0, [b"scrfs-ready epoch=3 current=ck%0A1;\n"]);
    }
}
