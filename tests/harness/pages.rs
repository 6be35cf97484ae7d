//! What the pages for people say about commands, options and files, held against the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tidy::Source;

/// Programs that the pages name.
const TOOLS: [&str; 4] = ["scrfs", "scrfs-ctl", "scrfs-run", "scrfs-perf"];
/// Those with verbs.
const WITH_VERBS: [&str; 2] = ["scrfs", "scrfs-ctl"];
/// Where our own files are.
const OURS: [&str; 2] = ["deploy/", "tests/"];
/// Folders of ours, as pages that speak of the source name them.
const FOLDERS: [&str; 5] = ["coordinator/", "deploy/", "scrfs/", "tests/", "tools/"];
/// What happened and is over: files may be gone since.
const HISTORY: &str = "CHANGELOG.md";
/// Where the messages between coordinators, daemons and tools are: the variants of an enum, or a
/// struct that is one.
const MESSAGES: [(&str, &str); 16] = [
    ("scrfs/src/control/command.rs", "Command"),
    ("scrfs/src/control/event.rs", "Event"),
    ("scrfs/src/control/data.rs", "DataRequest"),
    ("scrfs/src/control/data.rs", "DataReply"),
    ("scrfs/src/control/greeting.rs", "Role"),
    ("scrfs/src/control/greeting.rs", "Welcome"),
    ("scrfs/src/control/greeting.rs", "Ask"),
    ("scrfs/src/control/greeting.rs", "Answer"),
    ("scrfs/src/control/ready.rs", "Ready"),
    ("scrfs/src/control/ready.rs", "Sealed"),
    ("scrfs/src/control/ready.rs", "HaltDue"),
    ("scrfs/src/control/ready.rs", "Met"),
    ("scrfs/src/control/ready.rs", "Leaving"),
    ("scrfs/src/control/ready.rs", "Failed"),
    ("scrfs/src/control/lost.rs", "Lost"),
    ("coordinator/src/message.rs", "PeerMessage"),
];
/// The first column of a table of messages, and the number of its columns.
const TABLE: (&str, usize) = ("| message |", 5);

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

/// Source files that pages name are there. A name may lack what is in front, as long as one file
/// only can be meant.
pub fn files(top: &Path, pages: &[Source], sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for page in pages.iter().filter(|s| is_page(s) && s.path != HISTORY) {
        for name in spans(&page.text).filter(|span| !span.contains(char::is_whitespace)) {
            let whole = FOLDERS.iter().any(|folder| name.starts_with(folder));
            let ends = format!("/{name}");
            let found = sources.iter().filter(|s| s.path == name || s.path.ends_with(&ends)).count();
            if whole && !top.join(name).exists() || !whole && is_rust(name) && found == 0 {
                broken.push(format!("{}: no such file: {name}", page.path));
            } else if !whole && is_rust(name) && found > 1 {
                broken.push(format!("{}: {found} files end so: {name}", page.path));
            }
        }
    }
    broken
}

/// The tables of `page` have a whole row for each message, and for nothing else; and what the page
/// says of messages names things that the sources of the protocol have.
pub fn messages(sources: &[Source], page: &Source) -> Vec<String> {
    let mut broken = Vec::new();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    for row in table(&page.text) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() != TABLE.1 || cells.iter().any(|cell| cell.is_empty()) {
            broken.push(format!("{}: not {} cells: {row}", page.path, TABLE.1));
        }
        *rows.entry(cells[0].trim_matches('`')).or_default() += 1;
    }
    for (path, name) in MESSAGES {
        let declared = kinds(sources, path, name);
        if declared.is_empty() {
            broken.push(format!("{path}: no {name}"));
        }
        for kind in declared {
            match rows.remove(kind.as_str()) {
                Some(1) => {}
                Some(more) => broken.push(format!("{}: {more} rows for {kind}", page.path)),
                None => broken.push(format!("{}: no row for {kind}", page.path)),
            }
        }
    }
    broken.extend(rows.into_keys().map(|row| format!("{}: no message: {row}", page.path)));
    let beside = |source: &&Source| MESSAGES.iter().any(|(path, _)| folder(path) == folder(&source.path));
    let known: BTreeSet<&str> = sources.iter().filter(beside).flat_map(|s| words(&s.text)).collect();
    let named = spans(&page.text).filter(|span| is_type(span)).flat_map(|span| span.split("::"));
    let unknown: BTreeSet<&str> = named.filter(|name| !known.contains(name)).collect();
    broken.extend(unknown.into_iter().map(|name| format!("{}: nothing is called {name}", page.path)));
    broken
}

/// Rows of the tables of messages.
fn table(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let begins = line.starts_with(TABLE.0);
        inside = begins || inside && line.starts_with('|');
        inside && !begins && !line.starts_with("|-")
    })
}

/// The messages that `name` declares; none if it is not there.
fn kinds(sources: &[Source], path: &str, name: &str) -> Vec<String> {
    let Some(source) = sources.iter().find(|s| s.path == path) else { return Vec::new() };
    if source.text.contains(&format!("\npub struct {name} {{\n")) {
        return vec![name.to_owned()];
    }
    let begin = format!("\npub enum {name} {{\n");
    let body = source.text.split_once(&begin).and_then(|(_, rest)| rest.split_once("\n}"));
    let lines = body.map(|(body, _)| body).unwrap_or_default().lines();
    let named = lines.filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with(is_upper));
    named.filter_map(|line| words(line).next()).map(|variant| format!("{name}::{variant}")).collect()
}

/// `Event` and `Event::Marker`, and neither `EIO` nor `.complete`.
fn is_type(span: &str) -> bool {
    let part = |part: &str| part.starts_with(is_upper) && part.chars().all(char::is_alphanumeric);
    span.split("::").all(part) && span.contains(|c: char| c.is_ascii_lowercase())
}

fn is_upper(c: char) -> bool {
    c.is_ascii_uppercase()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// What is between backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn is_page(source: &Source) -> bool {
    Path::new(&source.path).extension().is_some_and(|e| e == "md")
}

fn is_rust(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == "rs")
}

/// Code of a page: indented lines without their comments, and what is between backquotes.
fn codes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(code) => found.push(code.split(" #").next().unwrap_or_default().trim().to_owned()),
            None => found.extend(spans(line).map(str::to_owned)),
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
