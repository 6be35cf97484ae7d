//! Named fault points for the crash tests. Without feature `faults`, which release builds do not have, all of this is
//! nothing.
//!
//! `SCRFS_FAULTS` holds `point=action[@n]`, comma separated: at the n-th hit (default 1) of that point in this process
//! `kill` ends the process as SIGKILL does, `error` makes the step fail with EIO, `full` with ENOSPC, `stop` freezes the
//! process (SIGSTOP). `SCRFS_FAULTS_FILE` names a file with the same text, read at every hit, so that a test can arm
//! a daemon that already runs; a fault that fired through it is armed again only when the file's text changes.
//!
//! Points are named `area.step`. Areas: `round` (directory rounds), `seal`, `encode`, `commit`, `flush`, `rebuild`,
//! `fetch`, `present`, `store`.

use std::io;

/// Passes fault point `point`.
///
/// # Errors
/// The injected one; never without feature `faults`.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn hit(_point: &'static str) -> io::Result<()> {
    Ok(())
}

/// Passes fault point `point`.
///
/// # Errors
/// The injected one.
#[cfg(feature = "faults")]
pub fn hit(point: &'static str) -> io::Result<()> {
    armed::hit(point)
}

#[cfg(feature = "faults")]
mod armed {
    use std::collections::HashMap;
    use std::io;
    use std::sync::OnceLock;

    use parking_lot::Mutex;

    #[derive(Default)]
    struct Counters {
        text: String,
        hits: HashMap<&'static str, u64>,
    }

    fn counters() -> &'static Mutex<Counters> {
        static COUNTERS: OnceLock<Mutex<Counters>> = OnceLock::new();
        COUNTERS.get_or_init(Mutex::default)
    }

    fn plan() -> String {
        let mut text = std::env::var("SCRFS_FAULTS").unwrap_or_default();
        if let Some(path) = std::env::var_os("SCRFS_FAULTS_FILE")
            && let Ok(more) = std::fs::read_to_string(path)
        {
            text.push(',');
            text.push_str(more.trim());
        }
        text
    }

    pub(super) fn hit(point: &'static str) -> io::Result<()> {
        let text = plan();
        let count = {
            let mut counters = counters().lock();
            if counters.text != text {
                counters.text.clone_from(&text);
                counters.hits.clear();
            }
            let count = counters.hits.entry(point).or_default();
            *count += 1;
            *count
        };
        for item in text.split(',') {
            let Some((name, action)) = item.trim().split_once('=') else { continue };
            let (action, nth) = action.split_once('@').unwrap_or((action, "1"));
            if name == point && nth.parse() == Ok(count) {
                return fire(point, action);
            }
        }
        Ok(())
    }

    fn fire(point: &'static str, action: &str) -> io::Result<()> {
        tracing::warn!(point, action, "fault fires");
        let signal = match action {
            "kill" => nix::sys::signal::Signal::SIGKILL,
            "stop" => nix::sys::signal::Signal::SIGSTOP,
            "full" => return Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)),
            _ => return Err(io::Error::from_raw_os_error(nix::libc::EIO)),
        };
        nix::sys::signal::kill(nix::unistd::Pid::this(), signal).map_err(io::Error::from)?;
        Ok(())
    }
}
