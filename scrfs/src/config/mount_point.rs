//! `SCRFS_MOUNT`: where scrfs is mounted, with the job's id and user in it.

use std::path::{Path, PathBuf};

use super::{Config, ConfigError, Layers, Rank, SYSTEM_FILE, Sources, USER_FILE, text_of};

impl Config {
    /// Where scrfs is mounted for who asks, for tools that need no more: what else is set does not
    /// keep them from asking. A user file that cannot be read sets nothing.
    pub fn mount_point(
        sources: &Sources,
        read: impl Fn(&Path) -> std::io::Result<Option<String>>,
    ) -> Result<PathBuf, ConfigError> {
        let mut layers = Layers::default();
        layers.add_environment(sources)?;
        let system = PathBuf::from(SYSTEM_FILE);
        layers.add_file(&system, text_of(&read, &system)?.as_deref(), Rank::System)?;
        let prefix = layers.path("SCR_PREFIX", sources)?.unwrap_or_else(|| sources.working_directory.clone());
        let user_file = layers.path("SCR_CONF_FILE", sources)?.unwrap_or_else(|| prefix.join(USER_FILE));
        if let Ok(text) = text_of(&read, &user_file) {
            layers.add_file(&user_file, text.as_deref(), Rank::User)?;
        }
        let (job_id, claim) = (layers.job_id()?, layers.claim()?);
        layers.mount_point(&job_id, claim.user_name().unwrap_or(&sources.user))
    }
}

impl Layers {
    pub(super) fn mount_point(&self, job_id: &str, user: &str) -> Result<PathBuf, ConfigError> {
        let path = self.read("SCRFS_MOUNT", |text, _| expand(text, job_id, user))?;
        Ok(path.unwrap_or_else(|| "/scr".into()))
    }
}

fn expand(text: &str, job_id: &str, user: &str) -> Result<PathBuf, String> {
    let mut path = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => path.push_str(match letters.next() {
                Some('j') => job_id,
                Some('u') => user,
                Some('%') => "%",
                _ => return Err("expected %j, %u or %% after a %".to_owned()),
            }),
            other => path.push(other),
        }
    }
    let path = PathBuf::from(path);
    let named = path.components().count() > 1 && !path.components().any(|c| c.as_os_str() == "..");
    if path.is_absolute() && named { Ok(path) } else { Err("expected an absolute path".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_and_user_are_put_in() {
        let of = |text| expand(text, "77", "ann");
        assert_eq!(of("/scr"), Ok("/scr".into()));
        assert_eq!(of("/scr/%u/%j"), Ok("/scr/ann/77".into()));
        assert_eq!(of("/a%%b.%j"), Ok("/a%b.77".into()));
        for bad in ["scr", "/", "/scr/%", "/scr/%x", "%j", "/scr/../%j"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
