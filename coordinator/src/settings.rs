//! The lead's settings hold on all nodes; what a person set differently on one node is refused by
//! name.

use std::collections::BTreeSet;

use scrfs::control::Settings;

/// One setting that daemons and coordinators follow: its parameter, and its value as text.
type Row = (&'static str, fn(&Settings) -> String);

const ROWS: &[Row] = &[
    ("SCR_PREFIX", |s| String::from_utf8_lossy(&s.prefix).into_owned()),
    ("SCR_USER_NAME", |s| s.user.clone()),
    ("SCR_JOB_ID", |s| s.job_id.clone()),
    ("SCR_ENABLE", |s| u8::from(s.enable).to_string()),
    ("SCRFS_CHECKPOINT_PATH", |s| {
        String::from_utf8_lossy(s.checkpoint_path.as_deref().unwrap_or_default()).into_owned()
    }),
    ("SCRFS_COORDINATOR_WAIT", |s| format!("{} ms", s.coordinator_wait_ms)),
    ("SCRFS_SEAL_TIMEOUT", |s| format!("{} ms", s.seal_timeout_ms)),
    ("SCRFS_MARKER", |s| {
        let names: Vec<_> = s.sealing.markers.iter().map(|name| String::from_utf8_lossy(name)).collect();
        if names.is_empty() { ".complete".to_owned() } else { names.join(",") }
    }),
    ("SCRFS_MARKER_SCOPE", |s| format!("{:?}", s.sealing.scope).to_lowercase()),
    ("SCRFS_SEAL", |s| if s.sealing.background { "background" } else { "wait" }.to_owned()),
    ("SCRFS_COMMIT_ON_RENAME", |s| s.sealing.commit_on_rename.clone().unwrap_or_default()),
    ("SCRFS_DATASET_PATTERN", |s| s.loose.pattern.clone().unwrap_or_default()),
    ("SCRFS_LOOSE_MAX", |s| s.loose.max_bytes.to_string()),
    ("SCRFS_LOOSE_FILES", |s| s.loose.max_names.to_string()),
    ("SCRFS_DESCRIPTORS", |s| {
        let shown = |rule: &scrfs::dataset::Protection| {
            let store =
                rule.store.as_deref().map_or("the one with most room".into(), String::from_utf8_lossy);
            let (interval, size, hop) = (rule.interval, rule.set_size, rule.hop_distance);
            format!(
                "INTERVAL={interval} TYPE={} SET_SIZE={size} HOP_DISTANCE={hop} GROUP={} STORE={store}",
                rule.scheme, rule.group
            )
        };
        s.protections.descriptors.iter().map(shown).collect::<Vec<_>>().join("; ")
    }),
    ("SCR_CACHE_SIZE", |s| s.cache_size.to_string()),
    ("SCRFS_CACHE_BYTES", |s| s.cache_bytes.to_string()),
    ("SCR_COPY_TYPE", |s| s.protections.usual.scheme.word().to_owned()),
    ("SCR_SET_FAILURES", |s| {
        s.protections.usual.scheme.failures().map_or_else(String::new, |n| n.to_string())
    }),
    ("SCR_SET_SIZE", |s| s.protections.usual.set_size.to_string()),
    ("SCR_HOP_DISTANCE", |s| s.protections.usual.hop_distance.to_string()),
    ("SCR_GROUP", |s| s.protections.usual.group.clone()),
    ("SCR_FLUSH", |s| s.flush_every.to_string()),
    ("SCRFS_SCRUB_INTERVAL", |s| s.scrub_interval_ms.to_string()),
    ("SCR_FETCH", |s| u8::from(s.fetch).to_string()),
    ("SCR_DISTRIBUTE", |s| u8::from(s.distribute).to_string()),
    ("SCRFS_RESTART", |s| if s.restart.lazy { "lazy" } else { "eager" }.to_owned()),
    ("SCRFS_FETCH", |s| if s.restart.lazy_fetch { "lazy" } else { "eager" }.to_owned()),
    ("SCRFS_KEEP_UNSEALED", |s| u8::from(s.restart.keep_unsealed).to_string()),
    ("SCRFS_LIST_MAX", |s| s.list_max.to_string()),
    ("SCR_CHECKPOINT_INTERVAL", |s| s.advice.interval.to_string()),
    ("SCR_CHECKPOINT_SECONDS", |s| s.advice.seconds.to_string()),
    ("SCR_CHECKPOINT_OVERHEAD", |s| s.advice.overhead.to_string()),
    ("SCR_HALT_SECONDS", |s| s.advice.halt_seconds.to_string()),
    ("SCRFS_END_TIME", |s| s.advice.end_time.to_string()),
    ("SCR_MPI_BUF_SIZE", |s| s.jobs.block_bytes.to_string()),
    ("SCRFS_ENCODE_THREADS", |s| s.jobs.encode_threads.to_string()),
];

/// Of the parameters that count for [`Settings`], those that `is_set` says were set here by hand.
pub fn set_by_hand(is_set: impl Fn(&str) -> bool) -> BTreeSet<String> {
    ROWS.iter().map(|(name, _)| *name).filter(|name| is_set(name)).map(str::to_owned).collect()
}

/// Compares one node's settings with the lead's; of those that were set there by hand none may
/// differ. The text names each that does.
pub fn agree(
    host: &str,
    theirs: &Settings,
    by_hand: &BTreeSet<String>,
    lead: &Settings,
) -> Result<(), String> {
    let differing: Vec<_> = ROWS
        .iter()
        .filter(|(name, value)| by_hand.contains(*name) && value(theirs) != value(lead))
        .map(|(name, value)| {
            format!("{name} is {} on {host} and {} on the first node", value(theirs), value(lead))
        })
        .collect();
    if differing.is_empty() { Ok(()) } else { Err(differing.join("; ")) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use scrfs::control::AdviceRules;
    use scrfs::dataset::{Protection, Protections, Scheme};

    pub(crate) fn settings() -> Settings {
        Settings {
            prefix: b"/pfs/job".to_vec(),
            user: "me".to_owned(),
            job_id: "7".to_owned(),
            enable: true,
            checkpoint_path: None,
            coordinator_wait_ms: 10_000,
            seal_timeout_ms: 30_000,
            cache_size: 2,
            cache_bytes: 0,
            protections: Protections::default(),
            flush_every: 10,
            scrub_interval_ms: 0,
            fetch: true,
            distribute: true,
            list_max: 1000,
            jobs: scrfs::control::JobRules { block_bytes: 4096, encode_threads: 1 },
            sealing: scrfs::control::SealRules::default(),
            loose: scrfs::control::LooseRules::default(),
            restart: scrfs::control::RestartRules::default(),
            advice: AdviceRules::default(),
        }
    }

    #[test]
    fn only_what_was_set_by_hand_must_agree() {
        let lead = settings();
        let mut other = settings();
        other.protections.usual.set_size = 4;
        other.cache_size = 1;
        let by_hand = set_by_hand(|name| name == "SCR_SET_SIZE");
        let text = agree("node3", &other, &by_hand, &lead).unwrap_err();
        assert!(text.contains("SCR_SET_SIZE is 4 on node3 and 8"), "{text}");
        assert!(!text.contains("SCR_CACHE_SIZE"));
        assert!(agree("node3", &other, &set_by_hand(|_| false), &lead).is_ok());

        let descriptor = |scheme| Protection { interval: 4, ..Protection::by(scheme) };
        let mut lead = settings();
        lead.protections.descriptors = vec![descriptor(Scheme::Single)];
        let mut other = lead.clone();
        other.protections.descriptors = vec![descriptor(Scheme::ReedSolomon { failures: 3 })];
        let text = agree("node3", &other, &set_by_hand(|_| true), &lead).unwrap_err();
        assert!(text.contains("TYPE=RS(3)") && text.contains("TYPE=SINGLE"), "{text}");
    }
}
