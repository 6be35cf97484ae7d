//! Framing of the control protocol: a big-endian length, then that many bytes of postcard.
//!
//! Without I/O: a [`Decoder`] is fed what arrived and gives whole frames. A length is believed only
//! up to the limit, and memory is taken only for bytes that arrived, so a peer that lies about a
//! length costs nothing.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest frame body, bytes: the catalog of a very large dataset fits.
pub const FRAME_MAX: usize = 256 << 20;
/// Largest first frame ([`super::Hello`]), bytes: a peer has shown no rights before it.
pub const HELLO_MAX: usize = 4 << 20;
/// Bytes of the length.
const PREFIX: usize = 4;

/// Why bytes are not a frame, or a value cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The length is above the limit.
    #[error("frame of {length} bytes is above the limit of {limit}")]
    TooLong {
        /// As announced, or as encoded.
        length: usize,
        /// What this connection takes.
        limit: usize,
    },
    /// The body is not the expected message.
    #[error("frame does not hold the expected message: {0}")]
    Malformed(String),
    /// Bytes are left after the message.
    #[error("{0} bytes follow the message in its frame")]
    Trailing(usize),
}

/// A whole frame with `value`.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    let frame =
        postcard::to_extend(value, vec![0; PREFIX]).map_err(|e| CodecError::Malformed(e.to_string()))?;
    seal_length(frame)
}

fn seal_length(mut frame: Vec<u8>) -> Result<Vec<u8>, CodecError> {
    let length = frame.len() - PREFIX;
    let too_long = CodecError::TooLong { length, limit: FRAME_MAX };
    if length > FRAME_MAX {
        return Err(too_long);
    }
    let prefix = u32::try_from(length).map_err(|_| too_long)?;
    frame[..PREFIX].copy_from_slice(&prefix.to_be_bytes());
    Ok(frame)
}

/// The message in a frame's body, which it fills to the last byte.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let (value, rest) = postcard::take_from_bytes(body).map_err(|e| CodecError::Malformed(e.to_string()))?;
    if rest.is_empty() { Ok(value) } else { Err(CodecError::Trailing(rest.len())) }
}

/// Cuts arriving bytes into frame bodies.
#[derive(Debug)]
pub struct Decoder {
    /// Bytes of the frame that is arriving, and of those behind it.
    arrived: Vec<u8>,
    /// Bytes of `arrived` that were given out already.
    taken: usize,
    limit: usize,
}

impl Decoder {
    /// Takes frames of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { arrived: Vec::new(), taken: 0, limit: limit.min(FRAME_MAX) }
    }

    /// Takes frames of at most `limit` bytes from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(FRAME_MAX);
    }

    /// Bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.arrived.drain(..self.taken);
            self.taken = 0;
        }
        self.arrived.extend_from_slice(bytes);
    }

    /// The next whole frame's body, if it has arrived. After an error the connection is of no more
    /// use.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, CodecError> {
        let Some(prefix) = self.arrived.get(self.taken..self.taken + PREFIX) else {
            return Ok(None);
        };
        let length = prefix.iter().fold(0_usize, |sum, &byte| (sum << 8) | usize::from(byte));
        if length > self.limit {
            return Err(CodecError::TooLong { length, limit: self.limit });
        }
        let start = self.taken + PREFIX;
        let Some(body) = self.arrived.get(start..start + length) else {
            return Ok(None);
        };
        self.taken = start + length;
        Ok(Some(body))
    }

    /// Bytes that wait for the rest of their frame, or to be taken.
    pub fn waiting(&self) -> usize {
        self.arrived.len() - self.taken
    }

    /// True when no part of a frame waits for the rest.
    pub fn is_empty(&self) -> bool {
        self.arrived.len() == self.taken
    }

    /// Gives back the memory of a large frame that was taken out whole.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.arrived.capacity() > (1 << 20) {
            self.arrived = Vec::new();
            self.taken = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::{Ask, Command, Severity};
    use crate::ids::DatasetId;

    #[test]
    fn frames_survive_any_tearing() {
        let commands = [
            Command::Inventory,
            Command::Note { severity: Severity::Info, text: "x".repeat(300) },
            Command::Sealed(DatasetId(7)),
        ];
        let mut bytes = Vec::new();
        for command in &commands {
            bytes.extend(encode(command).unwrap());
        }
        for step in [1, 2, 3, 5, 64, bytes.len()] {
            let mut decoder = Decoder::new(FRAME_MAX);
            let mut got = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.push(chunk);
                while let Some(body) = decoder.next_frame().unwrap() {
                    got.push(decode::<Command>(body).unwrap());
                }
            }
            assert_eq!(got, commands);
            assert!(decoder.is_empty());
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_bytes_come() {
        let mut decoder = Decoder::new(100);
        decoder.push(&101_u32.to_be_bytes());
        assert_eq!(decoder.next_frame(), Err(CodecError::TooLong { length: 101, limit: 100 }));
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(&u32::MAX.to_be_bytes());
        assert!(decoder.next_frame().is_err());
    }

    #[test]
    fn a_large_announced_length_takes_no_memory() {
        let mut decoder = Decoder::new(FRAME_MAX);
        decoder.push(&u32::try_from(FRAME_MAX).unwrap().to_be_bytes());
        decoder.push(b"only this");
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.arrived.capacity() < 1024);
    }

    #[test]
    fn bytes_after_the_message_are_refused() {
        let mut frame = encode(&Ask::Status).unwrap();
        frame.push(0);
        assert_eq!(decode::<Ask>(&frame[PREFIX..]), Err(CodecError::Trailing(1)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16)) {
            let mut decoder = Decoder::new(4096);
            for chunk in chunks {
                decoder.push(&chunk);
                while let Ok(Some(body)) = decoder.next_frame() {
                    let _ = decode::<Command>(body);
                    let _ = decode::<crate::control::Hello>(body);
                }
            }
        }
    }
}
