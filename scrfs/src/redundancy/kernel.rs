//! The inner loops.

use super::galois::double;
use super::vector;

/// Bytes handled in one go: a cache line. The compiler turns this into vectors that every processor
/// of the target has. XOR is bound by memory then; products gain from [`vector`], which does as
/// much of them as it can.
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
    let target = &mut target[..source.len()];
    let done = vector::add_multiple(target, source, factor);
    add_multiple_plainly(&mut target[done..], &source[done..], factor);
}

/// Without vectors of our own. Both are of one length.
fn add_multiple_plainly(target: &mut [u8], source: &[u8], factor: u8) {
    let (lines, rest) = target.as_chunks_mut::<LINE>();
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
    let done = vector::multiply_by(target, factor);
    multiply_by_plainly(&mut target[done..], factor);
}

/// Without vectors of our own.
fn multiply_by_plainly(target: &mut [u8], factor: u8) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redundancy::galois::multiply;

    /// Every byte with every factor, at every alignment and with every rest behind the vectors.
    #[test]
    fn with_and_without_vectors_the_products_are_those_of_the_field() {
        let bytes: Vec<u8> = (0..=255).cycle().skip(7).take(400).collect();
        let before: Vec<u8> = bytes.iter().map(|x| x.wrapping_mul(31) ^ 0x5a).collect();
        for factor in 0..=255 {
            let sums: Vec<u8> =
                bytes.iter().zip(&before).map(|(x, sum)| sum ^ multiply(*x, factor)).collect();
            let products: Vec<u8> = bytes.iter().map(|x| multiply(*x, factor)).collect();
            for from in 0..=64 {
                let mut target = before.clone();
                add_multiple(&mut target[from..], &bytes[from..], factor);
                assert_eq!((&target[..from], &target[from..]), (&before[..from], &sums[from..]));
                let mut target = bytes.clone();
                multiply_by(&mut target[from..], factor);
                assert_eq!((&target[..from], &target[from..]), (&bytes[..from], &products[from..]));
            }
            let mut target = before.clone();
            add_multiple_plainly(&mut target, &bytes, factor);
            assert_eq!(target, sums);
            let mut target = bytes.clone();
            multiply_by_plainly(&mut target, factor);
            assert_eq!(target, products);
        }
    }
}
