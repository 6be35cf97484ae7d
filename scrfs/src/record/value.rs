//! Values with a spelling of their own.

use super::field::Word;
use crate::hash::{FieldProblem, Text};

/// A CRC32 (zlib) of a file's bytes. Written `%#lx`: lower case, not padded, and 0, the CRC of no
/// bytes, as `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Crc32(pub u32);

impl Word for Crc32 {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        if word.as_bytes() == b"0" {
            return Ok(Self(0));
        }
        let digits = word.strip_prefix(b"0x").filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let value = value.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        value.map(Self).ok_or_else(|| FieldProblem::NotACrc(word.clone()))
    }

    fn to_word(&self) -> Text {
        if self.0 == 0 { "0".into() } else { Text::ascii(&format!("{:#x}", self.0)) }
    }
}

/// A number with six decimals, in millionths: how SCR prints rates and percentages (`%f`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal {
    /// The number times 1,000,000.
    pub millionths: i64,
}

/// Decimals that are kept.
const DECIMALS: usize = 6;
const MILLION: u64 = 1_000_000;

impl Word for Decimal {
    fn from_word(word: &Text) -> Result<Self, FieldProblem> {
        parse(word)
            .map(|millionths| Self { millionths })
            .ok_or_else(|| FieldProblem::NotANumber(word.clone()))
    }

    fn to_word(&self) -> Text {
        let sign = if self.millionths < 0 { "-" } else { "" };
        let size = self.millionths.unsigned_abs();
        Text::ascii(&format!("{sign}{}.{:06}", size / MILLION, size % MILLION))
    }
}

fn parse(word: &Text) -> Option<i64> {
    let word = word.as_str()?;
    let (negative, digits) = word.strip_prefix('-').map_or((false, word), |digits| (true, digits));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !plain(whole) || !plain(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(DECIMALS).collect();
    let size = whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction.parse().ok()?)?;
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crcs_are_not_padded_and_that_of_nothing_is_zero() {
        let word = |text: &'static str| Crc32::from_word(&text.into());
        assert_eq!(word("0x8988129").map(|crc| crc.to_word()), Ok("0x8988129".into()));
        for zero in ["0", "0x0"] {
            assert_eq!(word(zero), Ok(Crc32(0)));
        }
        assert_eq!(Crc32(0).to_word(), "0");
        for bad in ["0x", "00", "8988129", "0x123456789", "0x-1", "0xg", "0x+1"] {
            assert!(word(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn decimals_keep_six_places() {
        let word = |text: &'static str| Decimal::from_word(&text.into()).map(|number| number.to_word());
        assert_eq!(word("2097152.500000"), Ok("2097152.500000".into()));
        assert_eq!(word("-0.1"), Ok("-0.100000".into()));
        assert_eq!(word("7"), Ok("7.000000".into()));
        for bad in ["", "-", ".5", "5.", "1e3", "--1", "inf", "99999999999999999999"] {
            assert!(word(bad).is_err(), "{bad}");
        }
    }
}
