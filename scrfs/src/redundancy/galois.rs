//! Arithmetic in GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), as in redset.
//! Addition is XOR.

/// What is left of x^8 when it is reduced.
pub(super) const REDUCED: u8 = 0x1d;

/// `ORDER` nonzero elements; 2 generates all of them.
const ORDER: usize = 255;

/// Powers of 2, twice over, so that a sum of two logarithms needs no reduction; and logarithms.
const TABLES: ([u8; 2 * ORDER], [u8; 256]) = tables();

const fn tables() -> ([u8; 2 * ORDER], [u8; 256]) {
    let (mut powers, mut logarithms) = ([0; 2 * ORDER], [0; 256]);
    let (mut power, mut at) = (1_u8, 0);
    while at < ORDER {
        powers[at] = power;
        powers[at + ORDER] = power;
        // `at` is at most 254.
        #[expect(clippy::cast_possible_truncation, reason = "below 255")]
        {
            logarithms[power as usize] = at as u8;
        }
        power = double(power);
        at += 1;
    }
    (powers, logarithms)
}

/// `x` times 2.
pub(super) const fn double(x: u8) -> u8 {
    (x << 1) ^ if x & 0x80 == 0 { 0 } else { REDUCED }
}

/// The product.
pub fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (powers, logarithms) = &TABLES;
    powers[usize::from(logarithms[usize::from(a)]) + usize::from(logarithms[usize::from(b)])]
}

/// What gives 1 when `a` is multiplied with it; `None` for 0.
pub fn inverse(a: u8) -> Option<u8> {
    let (powers, logarithms) = &TABLES;
    (a != 0).then(|| powers[ORDER - usize::from(logarithms[usize::from(a)])])
}

/// The inverse of a square matrix, row by row; `None` if it has none. By Gauss and Jordan.
pub fn invert(mut matrix: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let size = matrix.len();
    let unit = |at: usize| (0..size).map(|column| u8::from(column == at)).collect::<Vec<u8>>();
    let mut inverted: Vec<Vec<u8>> = (0..size).map(unit).collect();
    for at in 0..size {
        let pivot = (at..size).find(|&row| matrix[row][at] != 0)?;
        matrix.swap(at, pivot);
        inverted.swap(at, pivot);
        let factor = inverse(matrix[at][at])?;
        for x in matrix[at].iter_mut().chain(&mut inverted[at]) {
            *x = multiply(*x, factor);
        }
        for row in (0..size).filter(|row| *row != at) {
            let factor = matrix[row][at];
            for column in 0..size {
                let (left, right) = (matrix[at][column], inverted[at][column]);
                matrix[row][column] ^= multiply(factor, left);
                inverted[row][column] ^= multiply(factor, right);
            }
        }
    }
    Some(inverted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By shifts, without tables.
    fn slowly(a: u8, b: u8) -> u8 {
        let mut power = a;
        let mut sum = 0;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                sum ^= power;
            }
            power = double(power);
        }
        sum
    }

    #[test]
    fn products_and_inverses() {
        assert_eq!((multiply(2, 0x80), multiply(0, 7), multiply(1, 7)), (REDUCED, 0, 7));
        assert_eq!(inverse(0), None);
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), slowly(a, b), "{a} * {b}");
            }
            assert!(a == 0 || inverse(a).is_some_and(|other| multiply(a, other) == 1), "{a}");
        }
    }

    #[test]
    fn a_matrix_times_its_inverse_is_the_unit() {
        let matrix = vec![vec![0, 1, 5], vec![7, 9, 200], vec![1, 1, 1]];
        let inverted = invert(matrix.clone()).unwrap();
        for (at, row) in matrix.iter().enumerate() {
            for column in 0..3 {
                let terms = row.iter().zip(&inverted).map(|(x, other)| multiply(*x, other[column]));
                assert_eq!(terms.fold(0, |sum, x| sum ^ x), u8::from(at == column));
            }
        }
        assert_eq!(invert(vec![vec![3, 3], vec![3, 3]]), None);
    }
}
