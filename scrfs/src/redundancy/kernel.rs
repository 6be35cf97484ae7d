//! The inner loop.

/// Bytes handled in one go: a cache line. The compiler turns this into the widest vectors of the target, and XOR is
/// bound by memory then; a version for each instruction set would gain nothing and need unsafe code.
const LINE: usize = 64;

/// XORs `source` into `target`. Where `source` is shorter, the rest of `target` stays: zeros behind a logical file's
/// end change nothing.
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
