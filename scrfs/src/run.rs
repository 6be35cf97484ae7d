//! The mark of a run of scrfs-run, which everything that it starts carries in its environment.
//!
//! `<stamp>-<pid>@<host>/<user>/<job id>`, and `#<name>` of a run that works beside others. The
//! tools make it and read all of it.

/// The environment variable.
pub const VARIABLE: &str = "SCRFS_RUN_TOKEN";

/// The host on which scrfs-run runs, by a mark of it; `None`: this is no mark.
pub fn host(mark: &str) -> Option<&str> {
    let (run, place) = mark.split_once('@')?;
    let (host, _) = place.split_once('/')?;
    (run.contains('-') && !host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_tells_its_host() {
        assert_eq!(host("17-4@login-1.site/a@b/x-y"), Some("login-1.site"));
        for bad in ["", "17-4", "17-4@login", "17@login/ann/7", "17-4@/ann/7"] {
            assert_eq!(host(bad), None, "{bad}");
        }
    }
}
