//! Work on file systems that may not answer, with a limit on the wait.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

/// The result of `work`, which runs in a thread of its own. After `limit` it is no longer waited
/// for and the result is `TimedOut`; the thread is left to the kernel, and what it still does must
/// be harmless.
///
/// # Errors
/// Those of `work`; no thread; no answer in time.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = mpsc::channel();
    // The receiver is gone when this came too late.
    std::thread::Builder::new().name("bounded".to_owned()).spawn(move || drop(tell.send(work())))?;
    told.recv_timeout(limit).unwrap_or_else(|_| {
        let text = format!("no answer in {} s", limit.as_secs_f32());
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_behind() {
        assert_eq!(within(Duration::from_mins(1), || Ok(7)).unwrap(), 7);
        let (hold, held) = mpsc::channel::<()>();
        let late = within(Duration::from_millis(20), move || {
            let _ = held.recv();
            Ok(())
        });
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(hold);
    }
}
