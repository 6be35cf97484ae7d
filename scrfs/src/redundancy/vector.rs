//! Products in GF(2^8) of many bytes by one factor, by a vector instruction where the processor has
//! one that helps. [`super::galois::multiply`] defines the results.
//!
//! A product is linear in the bits of a byte: the product of its lower four bits plus that of its
//! upper four. Each of these has 16 values, and one shuffle looks up as many as a vector has bytes
//! (Plank, Greenan and Miller: Screaming Fast Galois Field Arithmetic Using Intel SIMD
//! Instructions, FAST 2013).
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vectors are loaded and stored by address, on processors that have them")
)]

/// Adds `source` times `factor` to `target`, from the first byte on as far as vectors go; gives how
/// many bytes that is. Both are of one length.
pub(super) fn add_multiple(target: &mut [u8], source: &[u8], factor: u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::add_multiple(target, source, factor) };
    }
    let _ = (target, source, factor);
    0
}

/// Multiplies `target` by `factor`, from the first byte on as far as vectors go; gives how many
/// bytes that is.
pub(super) fn multiply_by(target: &mut [u8], factor: u8) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::multiply_by(target, factor) };
    }
    let _ = (target, factor);
    0
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_shuffle_epi8,
        _mm256_srli_epi16, _mm256_storeu_si256, _mm256_xor_si256,
    };
    use std::array::from_fn;

    use crate::redundancy::galois::multiply;

    /// Bytes of a vector.
    const WIDTH: usize = 32;

    /// The products of one factor.
    struct Products {
        /// With each value of the lower four bits; twice, as a shuffle keeps to its half.
        low: __m256i,
        /// With each value of the upper four bits, alike.
        high: __m256i,
        /// The lower four bits of each byte.
        lower: __m256i,
    }

    impl Products {
        #[target_feature(enable = "avx2")]
        fn of(factor: u8) -> Self {
            // Below 16.
            #[expect(clippy::cast_possible_truncation, reason = "below 16")]
            let nibble = |at: usize| (at % 16) as u8;
            Self {
                low: load(&from_fn(|at| multiply(nibble(at), factor))),
                high: load(&from_fn(|at| multiply(nibble(at) << 4, factor))),
                lower: _mm256_set1_epi8(0x0f),
            }
        }

        #[target_feature(enable = "avx2")]
        fn with(&self, bytes: __m256i) -> __m256i {
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), self.lower);
            let low = _mm256_shuffle_epi8(self.low, _mm256_and_si256(bytes, self.lower));
            _mm256_xor_si256(low, _mm256_shuffle_epi8(self.high, upper))
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn add_multiple(target: &mut [u8], source: &[u8], factor: u8) -> usize {
        let products = Products::of(factor);
        let mut done = 0;
        for (target, source) in target.as_chunks_mut().0.iter_mut().zip(source.as_chunks().0) {
            store(target, _mm256_xor_si256(load(target), products.with(load(source))));
            done += WIDTH;
        }
        done
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn multiply_by(target: &mut [u8], factor: u8) -> usize {
        let products = Products::of(factor);
        let mut done = 0;
        for target in target.as_chunks_mut().0 {
            store(target, products.with(load(target)));
            done += WIDTH;
        }
        done
    }

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; WIDTH]) -> __m256i {
        // SAFETY: `bytes` has as many bytes as a vector; this load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store(bytes: &mut [u8; WIDTH], vector: __m256i) {
        // SAFETY: `bytes` has as many bytes as a vector; this store needs no alignment.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
    }
}
