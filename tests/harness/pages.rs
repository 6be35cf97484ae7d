//! What the pages for people say about commands, options and files, held against the real ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tidy::Source;

/// Programs that the pages name.
const TOOLS: [&str; 4] = ["scrfs", "scrfs-ctl", "scrfs-run", "scrfs-perf"];
/// Those with verbs.
const WITH_VERBS: [&str; 2] = ["scrfs", "scrfs-ctl"];
/// Where our own files are.
const OURS: [&str; 2] = ["deploy/", "tests/"];

/// Links of all pages lead to files.
pub fn links(top: &Path, sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for page in sources.iter().filter(|s| is_page(s)) {
        let from = top.join(&page.path).parent().map_or_else(|| top.to_owned(), Path::to_owned);
        for target in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !from.join(path).exists() {
                broken.push(format!("{}: no such file: {target}", page.path));
            }
        }
    }
    broken
}

/// Commands, verbs and options that these pages name are there; `bin` has the programs.
pub fn commands(top: &Path, bin: &Path, pages: &[&Source]) -> Vec<String> {
    let mut help = Help { bin: bin.to_owned(), texts: BTreeMap::new() };
    let mut broken = Vec::new();
    for page in pages {
        for code in codes(&page.text) {
            let wrong = check(top, &code, &mut help);
            broken.extend(wrong.into_iter().map(|why| format!("{}: `{code}`: {why}", page.path)));
        }
    }
    broken
}

fn is_page(source: &Source) -> bool {
    Path::new(&source.path).extension().is_some_and(|e| e == "md")
}

/// Code of a page: indented lines without their comments, and what is between backquotes.
fn codes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(code) => found.push(code.split(" #").next().unwrap_or_default().trim().to_owned()),
            None => found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
        }
    }
    found
}

fn check(top: &Path, code: &str, help: &mut Help) -> Vec<String> {
    let words: Vec<&str> = code.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect();
    let Some((&first, rest)) = words.split_first() else { return Vec::new() };
    let mut broken = Vec::new();
    if OURS.iter().any(|part| first.starts_with(part)) && !top.join(first).exists() {
        broken.push("no such file".to_owned());
    }
    let verb = rest.first().filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
    let texts = if TOOLS.contains(&first) {
        let verb = verb.filter(|_| WITH_VERBS.contains(&first));
        vec![help.of(first, verb.copied())]
    } else if first.starts_with("--") {
        help.all()
    } else if help.of("scrfs-ctl", None).is_some_and(|text| text.contains(&format!("\n  {first} "))) {
        // A verb alone, as the table of verbs has it.
        vec![help.of("scrfs-ctl", Some(first))]
    } else {
        return broken;
    };
    if texts.contains(&None) {
        broken.push("no such command".to_owned());
    }
    // What follows `--` is the user's program.
    for option in words.iter().take_while(|word| **word != "--").filter(|word| word.starts_with("--")) {
        let name = option.split('=').next().unwrap_or_default();
        if !texts.iter().flatten().any(|text| has_option(text, name)) {
            broken.push(format!("no option {name}"));
        }
    }
    broken
}

fn has_option(help: &str, name: &str) -> bool {
    help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).any(|word| word == name)
}

/// What the programs say of themselves.
struct Help {
    bin: PathBuf,
    texts: BTreeMap<(String, Option<String>), Option<String>>,
}

impl Help {
    /// `None`: no such program or verb.
    fn of(&mut self, tool: &str, verb: Option<&str>) -> Option<String> {
        let key = (tool.to_owned(), verb.map(str::to_owned));
        let bin = &self.bin;
        let text = self.texts.entry(key).or_insert_with(|| {
            let output = Command::new(bin.join(tool)).args(verb).arg("--help").output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        });
        text.clone()
    }

    /// Of every program and verb.
    fn all(&mut self) -> Vec<Option<String>> {
        let mut all = Vec::new();
        for tool in TOOLS {
            let text = self.of(tool, None);
            let verbs = text.iter().flat_map(|text| text.lines()).filter_map(|line| line.strip_prefix("  "));
            let verbs: Vec<String> = verbs
                .filter_map(|line| line.split_whitespace().next())
                .filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()))
                .map(str::to_owned)
                .collect();
            all.push(text);
            if WITH_VERBS.contains(&tool) {
                all.extend(verbs.iter().filter_map(|verb| self.of(tool, Some(verb))).map(Some));
            }
        }
        all
    }
}
