//! What is known of a dataset, and how it is protected.

use super::field::record;
use crate::dataset::Catalog;
use crate::hash::{NulInText, Text};
use crate::ids::DatasetId;
use crate::redundancy::{FAILURES, Scheme};

record! {
    /// A dataset: `DSETDESC` in filemaps, `DSET` in summaries, indexes and headers of
    /// redundancy files.
    DatasetDescriptor {
        /// Every member's files were there.
        complete: Option<bool> = ["COMPLETE"],
        /// Bytes of all the program's files.
        size: Option<u64> = ["SIZE"],
        /// The program's files, without redundancy files.
        files: Option<u64> = ["FILES"],
        /// The dataset's id.
        id: Option<DatasetId> = ["ID"],
        /// The dataset's name.
        name: Option<Text> = ["NAME"],
        /// It can be restarted from (1.2 and later).
        is_checkpoint: Option<bool> = ["FLAG_CKPT"],
        /// It is a result to keep (1.2 and later).
        is_output: Option<bool> = ["FLAG_OUTPUT"],
        /// When it was made: microseconds since 1970.
        created_us: Option<u64> = ["CREATED"],
        /// Whose job.
        user: Option<Text> = ["USER"],
        /// The job's name.
        job_name: Option<Text> = ["JOBNAME"],
        /// The job's id.
        job_id: Option<Text> = ["JOBID"],
        /// Its id among checkpoints.
        checkpoint: Option<DatasetId> = ["CKPT"],
    }
}

impl DatasetDescriptor {
    /// The descriptor of a complete dataset.
    pub fn of(catalog: &Catalog) -> Result<Self, NulInText> {
        Ok(Self {
            id: Some(catalog.id),
            checkpoint: Some(catalog.id),
            name: Some(Text::new(catalog.name.clone())?),
            created_us: Some(catalog.created_us),
            user: Some(Text::new(catalog.user.clone())?),
            job_id: Some(Text::new(catalog.job_id.clone())?),
            files: Some(catalog.layout.members.iter().map(|m| m.files).sum()),
            size: Some(catalog.bytes()),
            complete: Some(true),
            ..Self::default()
        })
    }
}

record! {
    /// How a dataset is protected, as one member sees it: `REDDESC` in filemaps, `CKPTDESC` in
    /// 2011.
    RedundancyDescriptor {
        /// Members of a set that may be lost, with RS (3.x).
        failures: Option<u32> = ["SET_FAILURES"],
        /// Members per set that were asked for (2011).
        set_size: Option<u64> = ["SET_SIZE"],
        /// Hop distance (2011).
        hop_distance: Option<u64> = ["HOP_DISTANCE"],
        /// This member's position in its set.
        group_rank: Option<u64> = ["GROUP_RANK"],
        /// Members in its set.
        group_size: Option<u64> = ["GROUP_SIZE"],
        /// The set's name: the member at its position 0.
        group_id: Option<u64> = ["GROUP_ID"],
        /// How many sets there are.
        groups: Option<u64> = ["GROUPS"],
        /// The scheme's word; see [`RedundancyDescriptor::scheme`].
        kind: Option<Text> = ["TYPE"],
        /// The directory below the store where datasets are.
        directory: Option<Text> = ["DIRECTORY"],
        /// The store: base of the cache (`STORE` in 1.1.8 and later).
        base: Option<Text> = ["BASE", "STORE"],
        /// It is used for every n-th checkpoint.
        interval: Option<u64> = ["INTERVAL"],
        /// Number of the descriptor (2011).
        index: Option<u64> = ["INDEX"],
        /// It is in use.
        enabled: Option<bool> = ["ENABLED"],
    }
}

impl RedundancyDescriptor {
    /// The scheme, where it is one of ours.
    pub fn scheme(&self) -> Option<Scheme> {
        let failures = self.failures.map_or(Some(FAILURES), |failures| u8::try_from(failures).ok())?;
        self.kind.as_ref().and_then(|word| Scheme::from_word(word, failures))
    }
}

record! {
    /// How a dataset is to be copied to the PFS: `FLUSH` in filemaps.
    FlushDescriptor {
        /// The node that holds the copied member's own files.
        partner: Option<Text> = ["PARTNER"],
        /// Files are packed into containers.
        container: Option<bool> = ["CONTAINER"],
        /// The program's directories are kept.
        preserve: Option<bool> = ["PRESERVE"],
    }
}
