//! Damage to whole inputs, the same from the same seed.

/// Numbers at which readers go wrong.
const TELLING: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x1_0000,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX >> 1,
    u64::MAX,
];
/// Bytes of a hash file's header, and where its size is (see `scrfs::hash::file`).
const HEADER: usize = 20;
const CRC: usize = 4;

/// Makes damaged inputs.
pub(crate) struct Damage {
    state: u64,
}

impl Damage {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`; 0 if that is 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    /// One of the inputs, with one to four damages.
    pub(crate) fn one_of(&mut self, whole: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = whole[self.below(whole.len())].clone();
        // The bare tree or message of a framed one, too.
        if self.below(4) == 0 && bytes.len() > HEADER {
            bytes.drain(..[4, HEADER][self.below(2)]);
        }
        for _ in 0..=self.below(4) {
            self.harm(&mut bytes, whole);
        }
        match self.below(4) {
            0 => {}
            1 => reframe(&mut bytes),
            _ => reseal(&mut bytes),
        }
        bytes
    }

    fn harm(&mut self, bytes: &mut Vec<u8>, whole: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        let end = (at + self.below(40)).min(bytes.len());
        match self.below(9) {
            0 | 1 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            5 => {
                let other = &whole[self.below(whole.len())];
                let from = self.below(other.len());
                let to = (from + self.below(200)).min(other.len());
                bytes.splice(at..end, other[from..to].iter().copied());
            }
            6 => self.lie(bytes, at),
            7 => {
                // A length as postcard writes it.
                let claim = leb128(TELLING[self.below(TELLING.len())]);
                bytes.splice(at..end.min(at + self.below(3)), claim);
            }
            _ => {
                // Digits are numbers in trees.
                let digits: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    let at = digits[self.below(digits.len())];
                    let text = TELLING[self.below(TELLING.len())].to_string();
                    bytes.splice(at..=at, text.bytes());
                }
            }
        }
    }

    /// A length of 4 or 8 bytes that is not true.
    fn lie(&mut self, bytes: &mut [u8], at: usize) {
        let width = [4, 8][self.below(2)];
        let near = (bytes.len() as u64).wrapping_add_signed([-1, 0, 1][self.below(3)]);
        let claim = if self.below(3) == 0 { near } else { TELLING[self.below(TELLING.len())] };
        for (target, byte) in bytes[at..].iter_mut().zip(claim.to_be_bytes()[8 - width..].iter()) {
            *target = *byte;
        }
    }
}

fn leb128(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
    bytes
}

/// Gives a hash file a right size and CRC again, and a log's first record a right CRC.
fn reseal(bytes: &mut [u8]) {
    let hash_file = bytes.starts_with(&[0x95, 0x1f]) && bytes.len() >= HEADER + CRC;
    let size = bytes.len() as u64;
    if hash_file {
        let body = bytes.len() - CRC;
        bytes[8..16].copy_from_slice(&size.to_be_bytes());
        let crc = crc32fast::hash(&bytes[..body]);
        bytes[body..].copy_from_slice(&crc.to_be_bytes());
    } else if bytes.len() > 8 {
        let length = bytes[..4].iter().fold(0_usize, |sum, &byte| sum << 8 | usize::from(byte));
        if let Some(body) = bytes.get(8..8_usize.saturating_add(length)) {
            let crc = crc32fast::hash(body);
            bytes[4..8].copy_from_slice(&crc.to_be_bytes());
        }
    }
}

/// Gives a single frame its right length again.
fn reframe(bytes: &mut [u8]) {
    if let Some(body) = bytes.len().checked_sub(4).and_then(|n| u32::try_from(n).ok()) {
        bytes[..4].copy_from_slice(&body.to_be_bytes());
    }
}
