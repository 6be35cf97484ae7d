//! Buffers of bulk messages, which are used again and again: each fresh one would be cleared first,
//! and would drive what is worked on out of the processor's caches.

use std::collections::VecDeque;
use std::sync::Arc;

use scrfs::lock::Mutex;

/// Bytes that are kept for later use. The buffers in use are bounded by the jobs' credits and by
/// [`super::BULK_BYTES_MAX`].
const SPARE_BYTES_MAX: usize = 16 << 20;
/// Buffers that are kept for later use.
const SPARE_MAX: usize = 64;
/// Shorter ones, as the addresses of blocks are in, are not worth keeping.
const SPARE_BYTES_MIN: usize = 4096;

/// The buffers of one node. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Buffers(Arc<Mutex<Spare>>);

#[derive(Debug, Default)]
struct Spare {
    /// Used last at the back.
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// A buffer of `len` bytes. They are those of its last use, or 0.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let spare = self.0.lock().take(len);
        spare.unwrap_or_else(|| vec![0; len])
    }

    /// Keeps a buffer for later use; that which was not used for the longest time goes when there
    /// are too many.
    pub fn give(&self, buffer: Vec<u8>) {
        self.0.lock().give(buffer);
    }

    /// The same for one that was sent, once it is on its way to nobody else.
    pub fn give_last(&self, buffer: Arc<Vec<u8>>) {
        if let Ok(buffer) = Arc::try_unwrap(buffer) {
            self.give(buffer);
        }
    }

    /// Frees all that are kept.
    pub fn clear(&self) {
        *self.0.lock() = Spare::default();
    }
}

impl Spare {
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let at = self.buffers.iter().rposition(|buffer| buffer.len() == len)?;
        let buffer = self.buffers.remove(at)?;
        self.bytes -= buffer.len();
        Some(buffer)
    }

    fn give(&mut self, buffer: Vec<u8>) {
        if buffer.len() < SPARE_BYTES_MIN {
            return;
        }
        self.bytes += buffer.len();
        self.buffers.push_back(buffer);
        while self.bytes > SPARE_BYTES_MAX || self.buffers.len() > SPARE_MAX {
            let Some(oldest) = self.buffers.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_by_who_asks_for_its_length() {
        const LEN: usize = SPARE_BYTES_MIN;
        let buffers = Buffers::default();
        buffers.give(vec![1; LEN]);
        buffers.give(vec![2; LEN]);
        buffers.give(vec![3; LEN + 1]);
        assert_eq!(buffers.take(LEN), [2; LEN]);
        assert_eq!(buffers.take(LEN), [1; LEN]);
        assert_eq!(buffers.take(LEN), [0; LEN]);
        buffers.clear();
        assert_eq!(buffers.take(LEN + 1), [0; LEN + 1]);
    }

    #[test]
    fn what_is_sent_to_many_is_kept_once_the_last_has_it() {
        let buffers = Buffers::default();
        let bytes = Arc::new(vec![7; SPARE_BYTES_MIN]);
        buffers.give_last(bytes.clone());
        assert_eq!(buffers.take(SPARE_BYTES_MIN), [0; SPARE_BYTES_MIN]);
        buffers.give_last(bytes);
        assert_eq!(buffers.take(SPARE_BYTES_MIN), [7; SPARE_BYTES_MIN]);
    }

    #[test]
    fn no_more_is_kept_than_is_said() {
        let buffers = Buffers::default();
        for _ in 0..2 * SPARE_MAX {
            buffers.give(vec![1; SPARE_BYTES_MIN]);
        }
        let half = SPARE_BYTES_MAX / 2;
        for byte in 1..4 {
            buffers.give(vec![byte; half]);
        }
        let spare = buffers.0.lock();
        let kept: Vec<(u8, usize)> = spare.buffers.iter().map(|b| (b[0], b.len())).collect();
        assert_eq!((kept, spare.bytes), (vec![(2, half), (3, half)], SPARE_BYTES_MAX));
    }
}
