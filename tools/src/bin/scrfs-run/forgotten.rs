//! A program without `--` before it: what was meant is plain, so the right line is shown.

use std::ffi::OsString;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use scrfs_tools::{Failure, Outcome};

use crate::arguments::Arguments;

/// The arguments; what clap has to say itself (help, version, other errors) ends the process.
pub(crate) fn parse(words: &[OsString]) -> Outcome<Arguments> {
    scrfs::usage::need_descriptors("scrfs-run");
    Arguments::try_parse_from(words).or_else(|error| match explain(words, &error) {
        Some(failure) => Err(failure),
        None => scrfs::usage::end("scrfs-run", &error),
    })
}

fn explain(words: &[OsString], error: &clap::Error) -> Option<Failure> {
    let dashes = words.iter().position(|word| word == "--");
    if error.kind() == ErrorKind::MissingRequiredArgument && dashes.is_none_or(|at| at + 1 == words.len()) {
        return Some(
            Failure::new("no program is named").hint("scrfs-run [OPTIONS] -- PROGRAM ARGUMENTS").code(2),
        );
    }
    if error.kind() != ErrorKind::UnknownArgument || dashes.is_some() {
        return None;
    }
    let ContextValue::String(found) = error.get(ContextKind::InvalidArg)? else { return None };
    // An option of ours, mistyped.
    if found.starts_with('-') {
        return None;
    }
    let at = words.iter().position(|word| word == found.as_str())?;
    let line: Vec<String> = words[1..at].iter().map(quoted).collect();
    let program: Vec<String> = words[at..].iter().map(quoted).collect();
    let line = [vec!["scrfs-run".to_owned()], line, vec!["--".to_owned()], program].concat().join(" ");
    Some(Failure::new(format!("the program, {found}, comes after `--`")).hint(line).code(2))
}

/// As a shell reads it.
fn quoted(word: &OsString) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+[]".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &[&str]) -> Option<String> {
        let words: Vec<OsString> = line.iter().map(Into::into).collect();
        let error = Arguments::try_parse_from(&words).err()?;
        explain(&words, &error).map(|failure| {
            assert_eq!(failure.code, 2);
            format!("{} / {}", failure.message, failure.hint)
        })
    }

    #[test]
    fn the_right_line_is_shown() {
        assert_eq!(
            said(&["/opt/scrfs-run", "--nodes", "4", "./a.out", "-in", "x y"]).as_deref(),
            Some("the program, ./a.out, comes after `--` / scrfs-run --nodes 4 -- ./a.out -in 'x y'")
        );
        for nothing in [&["scrfs-run"][..], &["scrfs-run", "--nodes", "4"], &["scrfs-run", "--"]] {
            assert_eq!(
                said(nothing).as_deref(),
                Some("no program is named / scrfs-run [OPTIONS] -- PROGRAM ARGUMENTS")
            );
        }
        // clap knows better.
        assert_eq!(said(&["scrfs-run", "--noodes", "4", "--", "x"]), None);
        assert_eq!(said(&["scrfs-run", "--help"]), None);
    }
}
