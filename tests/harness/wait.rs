//! Waiting for a condition, with a deadline and a message that says what was waited for.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Calls `probe` until it gives a value, at most for `limit`; `None` after that.
pub fn poll<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Like [`poll`] for a test: panics with `what` when the time is up.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    match poll(limit, probe) {
        Some(value) => value,
        None => panic!("waited {limit:?} in vain for: {what}"),
    }
}

/// Waits until `probe` holds; panics with `what` when the time is up.
#[track_caller]
pub fn until_true(what: &str, limit: Duration, mut probe: impl FnMut() -> bool) {
    until(what, limit, || probe().then_some(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_gives_the_value_or_ends_in_time() {
        let mut calls = 0;
        let third = poll(Duration::from_secs(5), || {
            calls += 1;
            (calls == 3).then_some(calls)
        });
        assert_eq!(third, Some(3));
        let begun = Instant::now();
        assert_eq!(poll(Duration::from_millis(30), || None::<()>), None);
        assert!(begun.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    #[should_panic(expected = "the moon to turn green")]
    fn until_names_what_it_waited_for() {
        until_true("the moon to turn green", Duration::from_millis(5), || false);
    }
}
