//! The table of parameters in `man` macros.

use std::fmt::Write as _;

use crate::config::defs::{Kind, PARAMETERS, Parameter, Who};

/// All rows, a tagged paragraph each.
pub(super) fn table() -> String {
    PARAMETERS.iter().fold(String::new(), |text, parameter| text + &row(parameter))
}

/// A configuration file with every parameter at its default, all as comments.
pub(super) fn example() -> String {
    let head = "# Parameters of scrfs for all jobs of this site; see scrfs.conf(5). Take the # from lines to change.\n";
    PARAMETERS.iter().fold(head.to_owned(), |text, parameter| {
        let Parameter { name, default, doc, .. } = parameter;
        text + &format!("\n# {}.\n#{name}={default}\n", capital(&doc.replace('`', "")))
    })
}

fn row(parameter: &Parameter) -> String {
    let Parameter { name, kind, default, who, doc } = parameter;
    let mut text = format!(".TP\n.B {name}\n{}.\n", escaped(&capital(doc)));
    let values = match kind {
        Kind::Word(words) => format!("One of {}.", words.join(", ")),
        Kind::Count(least, most) | Kind::Bytes(least, most) => {
            format!("Value: {}, {}.", kind.describe(), range(*least, *most))
        }
        other => format!("Value: {}.", other.describe()),
    };
    let _ = write!(text, "{}", escaped(&values));
    if !default.is_empty() {
        let _ = write!(text, " Default: {}.", escaped(default));
    }
    if *who == Who::Administrator {
        text.push_str(" Set by the administrator only.");
    }
    text + "\n"
}

/// No limit is told that nobody can mean.
fn range(least: u64, most: u64) -> String {
    if most >= 1 << 40 { format!("{least} or more") } else { format!("{least} to {most}") }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

/// Plain text as text: a leading dot or quote would be a request, and a backslash an escape.
/// Backquotes mark code in the other manual.
fn escaped(text: &str) -> String {
    let text = text.replace('`', "").replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_says_what_holds_anyway() {
        use crate::config::{Config, SYSTEM_FILE, Sources};

        let commented = example();
        let set: Vec<&str> = commented.lines().filter(|line| line.starts_with("#SCR")).collect();
        let set = set.join("\n").replace('#', "");
        assert_eq!(set.lines().count(), PARAMETERS.len());
        let sources = Sources::of_process([]).unwrap();
        let load = |text: String| {
            Config::load(&sources, |path| {
                Ok((path == std::path::Path::new(SYSTEM_FILE)).then(|| text.clone()))
            })
            .unwrap()
        };
        assert_eq!(load(set), load(commented));
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(escaped(".complete"), "\\&.complete");
        assert_eq!(escaped("`a-b` \\d"), "a\\-b \\ed");
        let row = row(crate::config::defs::find("SCR_CNTL_BASE").unwrap());
        assert!(
            row.starts_with(".TP\n.B SCR_CNTL_BASE\nWhere ") && row.contains("administrator only"),
            "{row}"
        );
    }
}
