//! What a person can do where there is no room: the end of a message. Nothing where it says so
//! itself, or where room is not what is missing.

use crate::control::Reason;

/// About files of datasets on node `host`.
pub(super) fn of_cache(reason: &Reason, host: &str) -> String {
    if !reason.is_shortage_of_room() {
        return String::new();
    }
    format!(
        "; make room on {host}: remove files or datasets there that are not needed (rm -r), or keep fewer (SCR_CACHE_SIZE), \
         and set the marker again"
    )
}

/// About a directory on node `host`.
pub(super) fn of_directories(reason: &Reason, host: &str) -> String {
    if !reason.is_shortage_of_room() {
        return String::new();
    }
    format!(
        "; make room on {host}, bytes and inodes, in the file systems of the cache and of the control directory (`scrfs places` \
         names them): a directory is made there as soon as there is"
    )
}

/// About the daemon's own records on node `host`.
pub(super) fn of_control(reason: &Reason, host: &str) -> String {
    if !reason.is_shortage_of_room() {
        return String::new();
    }
    format!("; make room on {host}, in the file system of the control directory (`scrfs places` names it)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_room_is_to_be_made_is_named() {
        let full = Reason::with_errno("n3: full", libc::ENOSPC);
        assert!(of_cache(&full, "n3").starts_with("; make room on n3: remove files"));
        assert!(!of_cache(&Reason::with_errno("n0", libc::EDQUOT), "n0").is_empty());
        assert!(of_control(&full, "n3").contains("n3, in the file system of the control directory"));
        let gone = "n0: the coordinator is gone".into();
        assert_eq!((of_cache(&gone, "n0"), of_control(&gone, "n0")), (String::new(), String::new()));
    }
}
