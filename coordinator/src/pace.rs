//! How often the loop looks at the transport: closely while something is on its way, and ever less
//! often after that.

use std::time::Duration;

/// Between two polls of the transport when nothing happens, and the bell is heard.
const RUNG_POLL: Duration = Duration::from_millis(100);
/// And when it is not.
const IDLE_POLL: Duration = Duration::from_millis(10);
/// Between two polls while messages or blocks are on their way.
const BUSY_POLL: Duration = Duration::from_micros(100);
/// For so long after anything happened more is likely, and less from poll to poll.
const WARM: Duration = Duration::from_millis(500);
/// The same where the bell is heard; longer than [`crate::bell::QUIET`].
const RUNG_WARM: Duration = Duration::from_millis(100);
/// Between two polls while warm, at most.
const WARM_POLL: Duration = Duration::from_micros(500);
/// The part of the time since anything happened that a warm poll may come late.
const LATE_PART: u32 = 16;

/// How long the loop may sleep between two polls of the transport, which wakes nobody. Each poll
/// costs up to 70 microseconds of a processor, and is taken from the program. `rung`: who sends
/// something after that rings first.
pub fn pause(busy: bool, idle: Duration, rung: bool) -> Duration {
    if busy {
        BUSY_POLL
    } else if idle < warm(rung) {
        (idle / LATE_PART).clamp(BUSY_POLL, WARM_POLL)
    } else if rung {
        RUNG_POLL
    } else {
        IDLE_POLL
    }
}

/// For so long after anything happened looks are close.
pub fn warm(rung: bool) -> Duration {
    if rung { RUNG_WARM } else { WARM }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_close_while_something_is_on_its_way_and_ever_farther_apart_after_it() {
        let micros = Duration::from_micros;
        for (busy, idle, wait) in [
            (false, 0, 100),
            (false, 1_600, 100),
            (false, 8_000, 500),
            (false, 16_000, 500),
            (false, 499_999, 500),
            (false, 500_000, 10_000),
            (true, 500_000, 100),
        ] {
            assert_eq!(pause(busy, micros(idle), false), micros(wait), "{busy} {idle}");
        }
        assert_eq!(pause(false, micros(8_000), true), micros(500));
        assert_eq!(pause(false, micros(100_000), true), micros(100_000));
        assert!(RUNG_WARM > crate::bell::QUIET, "who has been in touch is not rung for");
        // A second after one message costs some 1,100 polls; half a second at the shortest pause
        // alone would cost 5,000.
        let (mut idle, mut polls) = (Duration::ZERO, 0);
        while idle < Duration::from_secs(1) {
            idle += pause(false, idle, false);
            polls += 1;
        }
        assert!((1_000..1_200).contains(&polls), "{polls}");
    }
}
