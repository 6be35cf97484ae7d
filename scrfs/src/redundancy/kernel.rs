//! The inner loops.

use super::galois::double;

/// Bytes handled in one go: a cache line. The compiler turns this into the widest vectors of the
/// target, and XOR is bound by memory then; a version for each instruction set would gain nothing
/// and need unsafe code.
const LINE: usize = 64;

/// XORs `source` into `target`. Where `source` is shorter, the rest of `target` stays: zeros behind
/// a logical file's end change nothing.
///
/// # Panics
/// If `source` is longer than `target`.
pub fn xor_into(target: &mut [u8], source: &[u8]) {
    assert!(source.len() <= target.len(), "no more bytes than there is room for");
    let (lines, rest) = target[..source.len()].as_chunks_mut::<LINE>();
    let (source_lines, source_rest) = source.as_chunks::<LINE>();
    for (target, source) in lines.iter_mut().zip(source_lines) {
        for (target, source) in target.iter_mut().zip(source) {
            *target ^= source;
        }
    }
    for (target, source) in rest.iter_mut().zip(source_rest) {
        *target ^= source;
    }
}

/// Adds `source` times `factor`, in GF(2^8), to `target`; of a shorter `source` as [`xor_into`].
///
/// # Panics
/// If `source` is longer than `target`.
pub fn add_multiple(target: &mut [u8], source: &[u8], factor: u8) {
    match factor {
        0 => return,
        1 => return xor_into(target, source),
        _ => assert!(source.len() <= target.len(), "no more bytes than there is room for"),
    }
    let (lines, rest) = target[..source.len()].as_chunks_mut::<LINE>();
    let (source_lines, source_rest) = source.as_chunks::<LINE>();
    for (target, source) in lines.iter_mut().zip(source_lines) {
        let product = multiplied(*source, factor);
        for (target, product) in target.iter_mut().zip(product) {
            *target ^= product;
        }
    }
    for (target, source) in rest.iter_mut().zip(source_rest) {
        *target ^= multiplied([*source], factor)[0];
    }
}

/// Multiplies `target` by `factor`, in GF(2^8).
pub fn multiply_by(target: &mut [u8], factor: u8) {
    if factor == 1 {
        return;
    }
    let (lines, rest) = target.as_chunks_mut::<LINE>();
    for line in lines {
        *line = multiplied(*line, factor);
    }
    for byte in rest {
        *byte = multiplied([*byte], factor)[0];
    }
}

/// Each of `bytes` times `factor`: the sum of `bytes` times those powers of 2 of which `factor` is
/// the sum. All bytes go the same way, so that a vector of them does.
fn multiplied<const N: usize>(bytes: [u8; N], factor: u8) -> [u8; N] {
    let (mut sum, mut power, mut left) = ([0; N], bytes, factor);
    while left != 0 {
        if left & 1 == 1 {
            for (sum, power) in sum.iter_mut().zip(&power) {
                *sum ^= power;
            }
        }
        for power in &mut power {
            *power = double(*power);
        }
        left >>= 1;
    }
    sum
}
