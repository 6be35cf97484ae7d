//! Times as people write them: what SCR's `scr_halt` takes in its manual's examples (`12pm today`),
//! RFC 3339, and spans from now on.

use jiff::civil::{Date, DateTime, Time};
use jiff::{Timestamp, ToSpan, Zoned};

/// Seconds since 1970. What names no zone is in that of `now`, what names no day is today.
pub(crate) fn parse(text: &str, now: &Zoned) -> Result<i64, String> {
    let text = text.trim();
    let wrong = || format!("{text:?} is no time");
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map_err(|_| wrong());
    }
    if let Some(span) = text.strip_prefix('+') {
        let seconds = span_seconds(span).ok_or_else(wrong)?;
        return now.timestamp().as_second().checked_add(seconds).ok_or_else(wrong);
    }
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant.as_second());
    }
    let local = match text.parse::<DateTime>() {
        // A date alone says no time of day.
        Ok(moment) if text.contains(':') => moment,
        _ => words(text, now).ok_or_else(wrong)?,
    };
    let zoned = local.to_zoned(now.time_zone().clone()).map_err(|e| format!("{text:?}: {e}"))?;
    Ok(zoned.timestamp().as_second())
}

/// In the zone of `now`.
pub(crate) fn show(seconds: i64, now: &Zoned) -> String {
    match Timestamp::from_second(seconds) {
        Ok(instant) => instant.to_zoned(now.time_zone().clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string(),
        Err(_) => seconds.to_string(),
    }
}

fn span_seconds(text: &str) -> Option<i64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(factor)
}

/// A time of day and a day, in any order.
fn words(text: &str, now: &Zoned) -> Option<DateTime> {
    let lower = text.to_ascii_lowercase();
    // `3 pm` is one word.
    let joined = lower.replace(" am", "am").replace(" pm", "pm");
    let (mut day, mut time) = (None, None);
    for word in joined.split_whitespace().filter(|word| *word != "at") {
        if let Some(found) = day_of(word, now.date()) {
            if day.replace(found).is_some() {
                return None;
            }
        } else if time.replace(time_of(word)?).is_some() {
            return None;
        }
    }
    Some(day.unwrap_or_else(|| now.date()).to_datetime(time?))
}

fn day_of(word: &str, today: Date) -> Option<Date> {
    match word {
        "today" => return Some(today),
        "tomorrow" => return today.checked_add(1.day()).ok(),
        _ => {}
    }
    let numbers =
        |separator: char| -> Option<Vec<i16>> { word.split(separator).map(|n| n.parse().ok()).collect() };
    let small = |n: i16| i8::try_from(n).ok();
    match (numbers('-').as_deref(), numbers('/').as_deref()) {
        (Some([year, month, day]), _) | (_, Some([month, day, year])) => {
            Date::new(*year, small(*month)?, small(*day)?).ok()
        }
        (_, Some([month, day])) => Date::new(today.year(), small(*month)?, small(*day)?).ok(),
        _ => None,
    }
}

fn time_of(word: &str) -> Option<Time> {
    let (digits, half) = match word {
        "noon" => ("12", Some(12)),
        "midnight" => ("12", Some(0)),
        _ => match (word.strip_suffix("am"), word.strip_suffix("pm")) {
            (Some(digits), _) => (digits, Some(0)),
            (_, Some(digits)) => (digits, Some(12)),
            _ => (word, None),
        },
    };
    let parts: Vec<i8> = digits.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (hour, minute, second) = match *parts.as_slice() {
        [hour] if half.is_some() => (hour, 0, 0),
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    Time::new(hour, minute, second, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        let now: Zoned = "2026-11-23T12:00:00-05:00[-05:00]".parse().unwrap();
        let noon = now.timestamp().as_second();
        let cases = [
            ("1795435200", 1_795_435_200),
            ("2026-11-23T17:00:00Z", noon),
            ("2026-11-23T18:00:00+01:00", noon),
            ("2026-11-23T12:00", noon),
            ("2026-11-23 12:00:30", noon + 30),
            ("12pm today", noon),
            ("today 12:00", noon),
            ("noon", noon),
            ("midnight", noon - 43_200),
            ("12am tomorrow", noon + 43_200),
            ("5 PM", noon + 5 * 3600),
            ("5:30pm", noon + 5 * 3600 + 1800),
            ("1am 11/24/2026", noon + 13 * 3600),
            ("11/24 at 1:00", noon + 13 * 3600),
            ("2026-11-24 1am", noon + 13 * 3600),
            ("17:00:05", noon + 5 * 3600 + 5),
            ("+90", noon + 90),
            ("+2h", noon + 7200),
            ("+1d", noon + 86_400),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text, &now), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "soon",
            "25:00",
            "13pm",
            "0am",
            "today",
            "2026-11-23",
            "noon 5pm",
            "today tomorrow 1pm",
            "+",
            "+2w",
            "99999999999999999999",
            "13/45 1pm",
            "-5",
        ] {
            assert!(parse(bad, &now).unwrap_err().contains("is no time"), "{bad}");
        }
        assert_eq!(show(noon, &now), "2026-11-23 12:00:00 -05");
        assert_eq!(show(i64::MAX, &now), i64::MAX.to_string());
    }
}
