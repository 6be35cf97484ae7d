//! Whose job it is: what options, parameters and the scheduler say, against this node's users.

use super::{ConfigError, Layers, Origin};

/// A user of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The name, or the number as text where the node has no name for it.
    pub name: String,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What is said of the job's user. Nothing: it is who asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    given: Option<Said>,
    name: Option<Said>,
    uid: Option<Said>,
    gid: Option<Said>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    origin: Origin,
    parameter: &'static str,
    text: String,
}

impl Said {
    fn wrong(&self, expected: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            origin: self.origin.clone(),
            name: self.parameter.to_owned(),
            text: self.text.clone(),
            expected: expected.into(),
        }
    }

    /// -1 is no user: system calls take it for "as it is".
    fn number(&self) -> Result<u32, ConfigError> {
        let digits = self.text.bytes().all(|b| b.is_ascii_digit());
        let number = self.text.parse().ok().filter(|number| digits && *number != u32::MAX);
        number.ok_or_else(|| self.wrong("expected the number of a user or group"))
    }
}

impl Claim {
    /// Something is said.
    pub fn is_made(&self) -> bool {
        self.user_name().is_some()
    }

    pub(super) fn user_name(&self) -> Option<&str> {
        let said = self.given.as_ref().or(self.name.as_ref()).or(self.uid.as_ref());
        said.map(|said| said.text.as_str())
    }
}

impl Layers {
    pub(super) fn claim(&self) -> Result<Claim, ConfigError> {
        let said = |parameter: &'static str| {
            let text = self.scheduler.get(parameter).filter(|text| !text.is_empty())?;
            Some(Said { origin: Origin::Environment, parameter, text: text.clone() })
        };
        let parameter = "SCR_USER_NAME";
        let origin = self.texts.get(parameter).and_then(|layers| Some(layers.first_key_value()?.1.1.clone()));
        let given = self.name(parameter)?;
        let given = given.zip(origin).map(|(text, origin)| Said { origin, parameter, text });
        Ok(Claim {
            given,
            name: said("SLURM_JOB_USER"),
            uid: said("SLURM_JOB_UID"),
            gid: said("SLURM_JOB_GID"),
        })
    }
}

impl Account {
    /// Whose directories `claim` means: what jobs have left is found by the user's name. Root may
    /// name one whom this node does not know: the account was deleted, or who keeps the accounts
    /// does not answer.
    ///
    /// # Errors
    /// As [`Account::of`], but for such a name.
    pub fn name_of(
        claim: &Claim,
        me: &Self,
        by_name: impl Fn(&str) -> Option<Self>,
        by_uid: impl Fn(u32) -> Option<Self>,
    ) -> Result<String, ConfigError> {
        let said = claim.given.as_ref().or(claim.name.as_ref()).filter(|_| me.uid == 0);
        let is_unknown = |said: &&Said| said.number().is_err() && by_name(&said.text).is_none();
        match said.filter(is_unknown) {
            Some(said) => Ok(said.text.clone()),
            None => Self::of(claim, me, by_name, by_uid).map(|account| account.name),
        }
    }

    /// The user that `claim` tells of. Root may act for all, others (`me`) for themselves only.
    /// `by_name` and `by_uid` ask this node's users.
    ///
    /// # Errors
    /// There is no such user here, or name and number are not one user's.
    pub fn of(
        claim: &Claim,
        me: &Self,
        by_name: impl Fn(&str) -> Option<Self>,
        by_uid: impl Fn(u32) -> Option<Self>,
    ) -> Result<Self, ConfigError> {
        let nameless = |uid| Self { name: format!("{uid}"), uid, gid: uid };
        if let Some(given) = &claim.given {
            let found = by_name(&given.text).or_else(|| {
                let uid = given.number().ok()?;
                Some(by_uid(uid).unwrap_or_else(|| nameless(uid)))
            });
            let found = found.or_else(|| (given.text == me.name).then(|| me.clone()));
            let found = found.ok_or_else(|| given.wrong("there is no such user on this node"))?;
            if me.uid != 0 && found.uid != me.uid {
                return Err(given.wrong(format!("only root mounts for others, and you are {}", me.name)));
            }
            return Ok(found);
        }
        let gid = claim.gid.as_ref().map(Said::number).transpose()?;
        let found = match (&claim.name, &claim.uid) {
            (Some(name), Some(number)) => {
                let uid = number.number()?;
                match by_name(&name.text).or_else(|| by_uid(uid)) {
                    Some(known) if known.uid == uid && known.name == name.text => known,
                    Some(known) => {
                        let Self { name, uid, .. } = known;
                        return Err(number.wrong(format!("on this node {name} is user {uid}")));
                    }
                    // The node has neither.
                    None => Self { name: name.text.clone(), ..nameless(uid) },
                }
            }
            (Some(name), None) => {
                by_name(&name.text).ok_or_else(|| name.wrong("there is no such user on this node"))?
            }
            (None, Some(number)) => {
                let uid = number.number()?;
                by_uid(uid).unwrap_or_else(|| nameless(uid))
            }
            (None, None) => return Ok(me.clone()),
        };
        Ok(Self { gid: gid.unwrap_or(found.gid), ..found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, uid: u32) -> Account {
        Account { name: name.to_owned(), uid, gid: uid + 1 }
    }

    fn known(wanted: impl Fn(&Account) -> bool) -> Option<Account> {
        [account("root", 0), account("ann", 1000), account("bob", 1001)].into_iter().find(wanted)
    }

    /// By --user, `SLURM_JOB_USER`, `_UID`, `_GID`; empty: not said.
    fn claim(words: [&str; 4]) -> Claim {
        let said = |at: usize| Said {
            origin: Origin::Environment,
            parameter: ["SCR_USER_NAME", "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID"][at],
            text: words[at].to_owned(),
        };
        let word = |at: usize| (!words[at].is_empty()).then(|| said(at));
        Claim { given: word(0), name: word(1), uid: word(2), gid: word(3) }
    }

    fn of(me: &Account, words: [&str; 4]) -> Result<(String, u32, u32), String> {
        let found =
            Account::of(&claim(words), me, |name| known(|a| a.name == name), |uid| known(|a| a.uid == uid));
        found.map(|a| (a.name, a.uid, a.gid)).map_err(|error| error.to_string())
    }

    #[test]
    fn root_may_name_one_who_has_no_account_any_more() {
        let (root, ann) = (account("root", 0), account("ann", 1000));
        let name = |me: &Account, words| {
            let by_name = |name: &str| known(|a| a.name == name);
            Account::name_of(&claim(words), me, by_name, |uid| known(|a| a.uid == uid))
        };
        for (words, found) in [
            (["eve", "", "", ""], "eve"),
            (["", "eve", "", ""], "eve"),
            // Another has the number now.
            (["", "eve", "1000", ""], "eve"),
            (["eve", "ann", "1000", ""], "eve"),
            (["ann", "", "", ""], "ann"),
            (["1001", "", "", ""], "bob"),
            (["4242", "", "", ""], "4242"),
            (["", "", "4242", ""], "4242"),
            (["", "", "", ""], "root"),
        ] {
            assert_eq!(name(&root, words).unwrap(), found, "{words:?}");
        }
        assert!(name(&root, ["", "ann", "1001", ""]).is_err());
        assert_eq!(name(&ann, ["", "", "", ""]).unwrap(), "ann");
        for other in ["eve", "bob", "root"] {
            assert!(name(&ann, [other, "", "", ""]).is_err(), "{other}");
        }
    }

    #[test]
    fn who_the_jobs_user_is() {
        let (root, ann) = (account("root", 0), account("ann", 1000));
        let is = |me: &Account, words, name: &str, uid, gid| {
            assert_eq!(of(me, words), Ok((name.to_owned(), uid, gid)), "{words:?}");
        };
        is(&root, ["", "", "", ""], "root", 0, 1);
        is(&root, ["ann", "", "", ""], "ann", 1000, 1001);
        is(&root, ["1001", "", "", ""], "bob", 1001, 1002);
        is(&root, ["4242", "", "", ""], "4242", 4242, 4242);
        is(&root, ["bob", "ann", "1000", "7"], "bob", 1001, 1002);
        is(&root, ["", "ann", "1000", ""], "ann", 1000, 1001);
        is(&root, ["", "ann", "1000", "7"], "ann", 1000, 7);
        is(&root, ["", "ann", "", ""], "ann", 1000, 1001);
        is(&root, ["", "", "1001", ""], "bob", 1001, 1002);
        is(&root, ["", "", "4242", ""], "4242", 4242, 4242);
        is(&root, ["", "eve", "4242", "5"], "eve", 4242, 5);
        is(&ann, ["", "", "", ""], "ann", 1000, 1001);
        is(&ann, ["ann", "", "", ""], "ann", 1000, 1001);
        is(&account("77", 77), ["77", "", "", ""], "77", 77, 77);
        let refused = |me: &Account, words, told: &str| {
            let error = of(me, words).unwrap_err();
            assert!(error.contains(told), "{words:?}: {error}");
        };
        refused(&root, ["eve", "", "", ""], "no such user");
        refused(&root, ["", "eve", "", ""], "SLURM_JOB_USER=\"eve\": there is no such user");
        refused(&root, ["", "ann", "1001", ""], "SLURM_JOB_UID=\"1001\": on this node ann is user 1000");
        refused(&root, ["", "eve", "1000", ""], "on this node ann is user 1000");
        refused(&root, ["", "", "x", ""], "expected the number");
        refused(&root, ["", "", "4294967295", ""], "expected the number");
        refused(&root, ["", "", "+5", ""], "expected the number");
        refused(&ann, ["bob", "", "", ""], "only root mounts for others");
        refused(&ann, ["root", "", "", ""], "only root mounts for others");
        refused(&ann, ["0", "", "", ""], "only root mounts for others");
    }
}
