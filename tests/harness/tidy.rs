//! The house rules, each as a function from the sources to the places that break it.
//! `suites/tidy.rs` runs them all; what is allowed, and why, stands in tables at the end of this
//! file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// A source file: its path from the workspace's top, and its text.
#[derive(Clone, Debug)]
pub struct Source {
    /// `scrfs/src/lib.rs`
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    fn is(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }

    fn is_shell(&self) -> bool {
        self.text.starts_with("#!") && self.text.lines().next().is_some_and(|line| line.ends_with("sh"))
    }

    /// Numbered lines of Rust without comments, blank lines and the tests at the file's end.
    fn code(&self) -> Vec<(usize, String)> {
        let mut lines = Vec::new();
        let mut in_block = false;
        let mut tests = false;
        for (number, line) in self.text.lines().enumerate() {
            if line == "#[cfg(test)]" {
                let next = self.text.lines().nth(number + 1).unwrap_or_default();
                tests = next.starts_with("mod ") && next.ends_with('{');
            }
            if tests {
                tests = line != "}";
                continue;
            }
            let trimmed = line.trim();
            in_block = in_block || trimmed.starts_with("/*");
            if !in_block && !trimmed.is_empty() && !trimmed.starts_with("//") {
                lines.push((number + 1, without_comment(line).to_owned()));
            }
            in_block = in_block && !trimmed.ends_with("*/");
        }
        lines
    }
}

/// Every source file of the workspace below `top`: Rust, manifests, pages, shell, Python, C.
pub fn sources(top: &Path) -> io::Result<Vec<Source>> {
    let mut found = Vec::new();
    walk(top, top, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(top: &Path, dir: &Path, found: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !NO_SOURCES.contains(&name.as_str()) {
                walk(top, &entry.path(), found)?;
            }
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            let path = entry.path();
            let path = path.strip_prefix(top).unwrap_or(&path).to_string_lossy().into_owned();
            let source = Source { path, text };
            if ["rs", "toml", "md", "py", "c", "sh", "in"].iter().any(|e| source.is(e)) || source.is_shell() {
                found.push(source);
            }
        }
    }
    Ok(())
}

/// The top level holds what a newcomer can take in at a glance.
pub fn top_level(top: &Path) -> io::Result<Vec<String>> {
    let mut broken = Vec::new();
    for entry in fs::read_dir(top)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !TOP_LEVEL.contains(&name.as_str()) {
            broken.push(format!("{name}: not a name of the top level"));
        }
    }
    Ok(broken)
}

/// Dependencies go one way: deploy to tools, coordinator and tools to the library, tests to all.
pub fn layers(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for (part, others) in LAYERS {
        for source in sources.iter().filter(|s| s.path.starts_with(part) && (s.is("rs") || s.is("toml"))) {
            for (number, line) in source.code() {
                let names = others.iter().filter(|other| {
                    let used = has_word(&line, &other.replace('-', "_"));
                    let depends = source.is("toml") && line.starts_with(**other) && !line.starts_with("name");
                    (source.is("rs") && used) || depends
                });
                broken.extend(
                    names.map(|other| format!("{}:{number}: {part} must not know {other}", source.path)),
                );
            }
        }
    }
    broken
}

/// Each foreign interface is named in one adapter.
pub fn adapters(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs")) {
        for (number, line) in source.code() {
            for (name, home) in ADAPTERS {
                if names_crate(&line, name) && !source.path.starts_with(home) && source.path != PEER {
                    broken.push(format!("{}:{number}: {name} is named in {home} only", source.path));
                }
            }
        }
    }
    broken
}

/// Every lock has a rank: threads take them in one order, which debug builds check.
pub fn locks(sources: &[Source]) -> Vec<String> {
    let product = |s: &&Source| RANKED.iter().any(|part| s.path.starts_with(part)) && s.is("rs");
    let mut broken = Vec::new();
    for source in sources.iter().filter(product).filter(|s| s.path != LOCKS && !s.path.contains("/tests/")) {
        for (number, line) in source.code() {
            let lock = ["Mutex", "RwLock", "Condvar"].iter().any(|lock| has_word(&line, lock));
            if line.contains("parking_lot") || lock && line.contains("sync::") {
                broken.push(format!("{}:{number}: a lock without a rank: see {LOCKS}", source.path));
            }
        }
    }
    broken
}

/// Who implements a side of the boundary between node and tree says what each call does: a body of
/// the trait's own would stand in for one that was forgotten.
pub fn defaults(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.path == BOUNDARY) {
        let mut in_trait = false;
        for (number, line) in source.code() {
            in_trait = line.starts_with("pub trait") || in_trait && !line.starts_with('}');
            if in_trait && line.starts_with("    ") && line.contains('{') {
                broken.push(format!("{}:{number}: a body in a trait", source.path));
            }
        }
    }
    broken
}

/// A file can be read in one sitting.
pub fn lengths(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources {
        let (lines, most) = if source.is("rs") {
            (source.code().len(), RUST_LINES)
        } else if source.is_shell() {
            (source.text.lines().count(), SHELL_LINES)
        } else {
            continue;
        };
        let allowed = LONG_FILES.iter().find(|(path, ..)| *path == source.path);
        match allowed {
            None if lines > most => {
                broken.push(format!("{}: {lines} lines of code, {most} are allowed", source.path));
            }
            Some((_, granted, _)) if lines > *granted => {
                broken.push(format!("{}: {lines} lines of code, it was granted {granted}", source.path));
            }
            Some(_) if lines <= most => {
                broken.push(format!("{}: short enough now: strike it off", source.path));
            }
            _ => {}
        }
    }
    broken
}

/// Every module file, and above all every suite, is part of the build.
pub fn forgotten(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs") && !s.path.contains("/bin/scrfs-sim")) {
        let Some((dir, file)) = source.path.rsplit_once('/') else { continue };
        let (dir, name) = match file.trim_end_matches(".rs") {
            "main" | "lib" | "build" => continue,
            "mod" => dir.rsplit_once('/').unwrap_or(("", dir)),
            name => (dir, name),
        };
        if ["benches", "examples", "fuzz_targets"].iter().any(|d| dir.ends_with(d)) {
            continue;
        }
        let parents = ["mod.rs", "lib.rs", "main.rs"].map(|parent| format!("{dir}/{parent}"));
        let declared = sources.iter().filter(|s| parents.contains(&s.path) || s.path == format!("{dir}.rs"));
        let line = format!("mod {name};");
        if !declared.into_iter().any(|s| s.text.lines().any(|l| has_word(l, "mod") && l.ends_with(&line))) {
            broken.push(format!("{}: no `{line}` beside it", source.path));
        }
    }
    broken
}

/// Unsafe code stands in fenced modules only.
pub fn fences(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs")) {
        if source.path == HERE || FENCED.iter().any(|(path, _)| *path == source.path) {
            continue;
        }
        let lines = source.text.lines().enumerate();
        for (number, _) in lines.filter(|(_, l)| has_word(without_comment(l), "unsafe")) {
            broken.push(format!("{}:{}: unsafe outside the fence", source.path, number + 1));
        }
    }
    broken
}

/// Logic that a test runs with 64 nodes in one thread touches neither files nor clocks nor threads.
pub fn purity(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.is("rs") && PURE.iter().any(|part| s.path.starts_with(part))) {
        for (number, line) in source.code() {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                broken.push(format!("{}:{number}: {word} in pure logic", source.path));
            }
        }
    }
    broken
}

/// A struct has about a dozen fields at most; `WIDE` has those that have more, which are to get
/// narrower.
pub fn fields(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut wide = BTreeMap::new();
    for source in sources.iter().filter(|s| s.is("rs") && s.path.contains("/src/")) {
        let code = source.code();
        let mut lines = code.iter().map(|(_, line)| line.as_str());
        while let Some(line) = lines.next() {
            let Some((before, after)) = line.split_once("struct ").filter(|_| line.ends_with('{')) else {
                continue;
            };
            let indent = before.len() - before.trim_start().len();
            let is_field = |line: &&str| {
                let inner = line.get(indent + 4..).unwrap_or_default();
                line[..line.len().min(indent + 4)].trim().is_empty()
                    && inner.starts_with(char::is_alphabetic)
                    && inner.contains(": ")
            };
            let body =
                lines.by_ref().take_while(|line| line.trim_end() != format!("{}}}", " ".repeat(indent)));
            let count = body.filter(is_field).count();
            if count > FIELDS_MAX {
                let name = after.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
                wide.insert(format!("{}: {name}", source.path), count);
            }
        }
    }
    for (name, count) in &wide {
        match WIDE.iter().find(|(known, _)| known == name) {
            Some((_, most)) if count == most => {}
            Some((_, most)) => broken.push(format!("{name}: {count} fields, and the table says {most}")),
            None => broken.push(format!("{name}: {count} fields, more than {FIELDS_MAX}")),
        }
    }
    let gone = WIDE.iter().filter(|(known, _)| !wide.contains_key(*known));
    broken.extend(gone.map(|(known, _)| format!("{known}: no longer wide")));
    broken
}

/// No two parts of the library import one another, save those of `CIRCLES`, which are to get
/// fewer.
pub fn circles(sources: &[Source]) -> Vec<String> {
    let mut imports = BTreeSet::new();
    for source in sources.iter().filter(|s| s.is("rs") && !s.path.contains("/tests")) {
        let Some(inside) = source.path.strip_prefix("scrfs/src/") else { continue };
        let part = inside.split(['/', '.']).next().unwrap_or_default();
        for (_, line) in source.code() {
            for other in line.split("crate::").skip(1) {
                let end = other.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(other.len());
                imports.insert((part.to_owned(), other[..end].to_owned()));
            }
        }
    }
    let is_mutual = |one: &str, other: &str| {
        let has = |one: &str, other: &str| imports.contains(&(one.to_owned(), other.to_owned()));
        one < other && has(one, other) && has(other, one)
    };
    let known = |one: &str, other: &str| CIRCLES.contains(&(one, other));
    let mutual = imports.iter().filter(|(one, other)| is_mutual(one, other) && !known(one, other));
    let mutual = mutual.map(|(one, other)| format!("{one} and {other} import one another"));
    let gone = CIRCLES.iter().filter(|(one, other)| !is_mutual(one, other));
    mutual.chain(gone.map(|(one, other)| format!("{one} and {other}: no circle any more"))).collect()
}

/// Notes to oneself, tests that do not run, and somebody's own directories do not belong here.
pub fn words(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| s.path != HERE) {
        for (number, line) in source.text.lines().enumerate() {
            for (word, why) in WORDS.iter().filter(|(word, _)| line.contains(word)) {
                broken.push(format!("{}:{}: {word}: {why}", source.path, number + 1));
            }
        }
    }
    broken
}

/// Sources are ASCII, save for a few signs that read better than their stand-ins.
pub fn ascii(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|s| !BEYOND_ASCII.iter().any(|(path, _)| *path == s.path)) {
        for (number, line) in source.text.lines().enumerate() {
            let drawn = source.is("md");
            let strange =
                line.chars().find(|&c| !(c.is_ascii() || SIGNS.contains(c) || drawn && DRAWN.contains(c)));
            broken.extend(strange.map(|c| format!("{}:{}: {c:?}", source.path, number + 1)));
        }
    }
    broken
}

/// Comments have at most 100 columns, save for tables and what is code in them.
pub fn columns(sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for source in sources.iter().filter(|source| source.is("rs")) {
        let mut in_code = false;
        for (number, line) in source.text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let text = comment.trim_start_matches(['/', '!']).trim_start();
            in_code ^= text.starts_with("```");
            let is_free = in_code || text.starts_with(['|', '`']);
            if !is_free && line.chars().count() > COMMENT_COLUMNS {
                broken.push(format!("{}:{}: longer than {COMMENT_COLUMNS} columns", source.path, number + 1));
            }
        }
    }
    broken
}

/// Every package obeys the workspace's lints.
pub fn lints(sources: &[Source]) -> Vec<String> {
    let manifests = sources.iter().filter(|s| s.path.ends_with("/Cargo.toml") && !s.path.contains("fuzz"));
    let lax = manifests.filter(|s| !s.text.contains("[lints]\nworkspace = true"));
    lax.map(|s| format!("{}: [lints] workspace = true is missing", s.path)).collect()
}

/// The tables at the end of this file name files that exist.
pub fn tables(sources: &[Source]) -> Vec<String> {
    let long = LONG_FILES.iter().map(|(path, ..)| *path);
    let all =
        long.chain(FENCED.iter().map(|(path, _)| *path)).chain(BEYOND_ASCII.iter().map(|(path, _)| *path));
    let gone = all.filter(|path| !sources.iter().any(|s| s.path == *path));
    let gone = gone.chain(PURE.into_iter().filter(|part| !sources.iter().any(|s| s.path.starts_with(part))));
    gone.map(|path| format!("{path}: in a table of {HERE}, but there is no such file")).collect()
}

fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    line.find(" //").map_or(line, |at| &line[..at])
}

fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

/// Whether a line of code names an extern crate: `name::…` that no path leads to, or `use name`.
fn names_crate(line: &str, name: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '"';
    line.match_indices(&format!("{name}::")).any(|(at, _)| !line[..at].ends_with(part))
        || [format!("use {name};"), format!("use {name} as "), format!("extern crate {name}")]
            .iter()
            .any(|form| line.contains(form.as_str()))
}

/// This file, which has to name what it forbids.
const HERE: &str = "tests/harness/tidy.rs";

/// What node and tree ask of one another.
const BOUNDARY: &str = "scrfs/src/boundary.rs";
/// Most lines of code in a Rust file.
const RUST_LINES: usize = 500;
/// Most lines in a shell file.
const SHELL_LINES: usize = 80;

const TOP_LEVEL: [&str; 11] = [
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "coordinator",
    "deploy",
    "scrfs",
    "target",
    "tests",
    "tools",
];

/// Directories without sources of ours.
const NO_SOURCES: [&str; 7] =
    [".git", "artifacts", "corpus", "golden", "proptest-regressions", "target", "vectors"];

/// Who must not know whom.
const LAYERS: [(&str, &[&str]); 3] = [
    ("scrfs/", &["scrfs-coordinator", "scrfs-tools", "scrfs-harness", "scrfs-tests"]),
    ("coordinator/", &["scrfs-tools", "scrfs-harness", "scrfs-tests"]),
    ("tools/", &["scrfs-coordinator", "scrfs-harness", "scrfs-tests"]),
];

/// Crates that are named in one place.
const ADAPTERS: [(&str, &str); 2] = [("fuser", "scrfs/src/fuse"), ("mpi", "coordinator/src/comm/mpi")];

/// And one that is a program of its own: what the mount is measured against.
const PEER: &str = "tests/perf/loopback/main.rs";

/// Where locks are defined, and the parts that take theirs from there.
const LOCKS: &str = "scrfs/src/lock.rs";
const RANKED: [&str; 3] = ["scrfs/src/", "coordinator/src/", "tools/src/"];

/// Files beyond the limit: what they are granted, and why.
const LONG_FILES: [(&str, usize, &str); 0] = [];

/// Files with unsafe code, and what they need it for.
const FENCED: &[(&str, &str)] = &[
    ("coordinator/src/comm/mpi.rs", "sends that outlive a scope need MPI's own calls"),
    ("scrfs/src/control/peer.rs", "a peer's groups have no safe wrapper"),
    ("scrfs/src/fuse/backing.rs", "fuser's backing ids end with the process; a successor needs them"),
    ("scrfs/src/fuse/buffers.rs", "fuser makes its own buffers: the allocator has their pages there"),
    ("scrfs/src/fuse/session.rs", "a descriptor that fuser owns is given another meaning"),
    ("scrfs/src/keep/keeper.rs", "clone(2) with a shared descriptor table has no safe wrapper"),
    ("scrfs/src/priority/threads.rs", "sched_setattr and sched_getattr have no safe wrapper"),
    ("scrfs/src/keep/memory.rs", "memory that processes share"),
    ("scrfs/src/redundancy/vector.rs", "vectors are loaded and stored by address"),
    ("scrfs/src/store/lease.rs", "leases have no safe wrapper"),
    ("scrfs/tests/posix/fence.rs", "calls that a program makes and that have no safe wrapper"),
    ("tests/mutations/allocations.rs", "a global allocator is an unsafe trait"),
];

const FIELDS_MAX: usize = 12;

/// Structs with more fields.
const WIDE: [(&str, usize); 20] = [
    ("coordinator/src/comm/mpi.rs: MpiTransport", 13),
    ("coordinator/src/comm/sim.rs: SimTransport", 13),
    ("coordinator/src/lead/advice.rs: Advice", 14),
    ("coordinator/src/lead/loose.rs: Loose", 14),
    ("scrfs/src/config/mod.rs: Config", 39),
    ("scrfs/src/control/settings.rs: Settings", 20),
    ("scrfs/src/daemon/node.rs: Node", 23),
    ("scrfs/src/daemon/node.rs: NodeConfig", 17),
    ("scrfs/src/daemon/state.rs: State", 14),
    ("scrfs/src/doctor/facts.rs: Facts", 18),
    ("scrfs/src/fs/attr.rs: Attr", 13),
    ("scrfs/src/mount/mod.rs: Options", 15),
    ("scrfs/src/status/mod.rs: DatasetStatus", 16),
    ("scrfs/src/status/mod.rs: NodeStatus", 26),
    ("tools/src/bin/scrfs-run/arguments.rs: Arguments", 18),
    ("tools/src/bin/scrfs-run/arguments.rs: Job", 16),
    ("tools/src/bin/scrfs-run/drive.rs: Driver", 14),
    ("tools/src/bin/scrfs-run/supervise.rs: Supervisor", 46),
    ("tools/src/bin/scrfs-run/supervise/message.rs: Look", 16),
    ("tools/src/probe.rs: Report", 17),
];

/// Parts of the library that import one another.
const CIRCLES: [(&str, &str); 4] =
    [("config", "control"), ("dataset", "redundancy"), ("halt", "prefix"), ("mounted", "store")];

/// Where only values go in and out.
const PURE: [&str; 5] = [
    "coordinator/src/lead/",
    "scrfs/src/daemon/core/",
    "scrfs/src/dataset/",
    "scrfs/src/fs/view/",
    "tools/src/bin/scrfs-run/supervise",
];

const IMPURE: [&str; 7] =
    ["std::fs", "std::net", "std::thread", "std::env", "Instant::now", "SystemTime::now", "std::process"];

const WORDS: [(&str, &str); 7] = [
    ("TODO", "do it, or open an issue"),
    ("FIXME", "fix it, or open an issue"),
    ("XXX", "say what it is"),
    ("HACK", "say why it is right"),
    ("#[ignore", "a test that does not run proves nothing"),
    ("/home/", "a path of somebody's machine"),
    ("lorem ipsum", "write the text"),
];

/// Longest line of a comment.
const COMMENT_COLUMNS: usize = 100;

/// Signs beyond ASCII that sources may use.
const SIGNS: &str = "…→≤≥×µ";
/// And pages besides, for drawings.
const DRAWN: &str = "─│┌┐└┘├┤┬┴┼▲▼►◄–";

/// Files that are beyond ASCII on purpose.
const BEYOND_ASCII: [(&str, &str); 1] = [(HERE, "has to name the signs")];

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> [Source; 1] {
        [Source { path: path.into(), text: text.into() }]
    }

    #[test]
    fn code_is_what_is_left_without_comments_and_tests() {
        let text = "//! Doc.\n\nuse a;\n/* long\ncomment */\nfn f() {\n    g(); // h\n}\n\n#[cfg(test)]\nmod tests {\n    x\n}\nfn z() {}\n";
        let [one] = source("scrfs/src/a.rs", text);
        let lines: Vec<_> = one.code().into_iter().map(|(n, l)| (n, l.trim().to_owned())).collect();
        let expected = [(3, "use a;"), (6, "fn f() {"), (7, "g();"), (8, "}"), (14, "fn z() {}")];
        assert_eq!(lines, expected.map(|(n, l)| (n, l.to_owned())));
    }

    #[test]
    fn the_rules_bite() {
        let lib = "scrfs/src/lib.rs";
        assert_eq!(layers(&source(lib, "use scrfs_coordinator::x;\n")).len(), 1);
        assert_eq!(
            layers(&source("scrfs/Cargo.toml", "[dependencies]\nscrfs-coordinator.workspace = true\n")).len(),
            1
        );
        assert_eq!(layers(&source("coordinator/Cargo.toml", "name = \"scrfs-coordinator\"\n")).len(), 0);
        assert_eq!(adapters(&source(lib, "fn f(r: fuser::Request) {}\n")).len(), 1);
        assert_eq!(adapters(&source(lib, "use mpi::traits::*;\n")).len(), 1);
        assert_eq!(adapters(&source(lib, "use crate::comm::mpi::World; // not mpi::World\n")).len(), 0);
        assert_eq!(adapters(&source("scrfs/src/fuse/mod.rs", "use fuser::Request;\n")).len(), 0);
        let boundary = "pub trait T {\n    fn f(&self);\n    fn g(&self) {}\n}\nfn h() {\n}\n";
        assert_eq!(defaults(&source(BOUNDARY, boundary)).len(), 1);
        assert_eq!(lengths(&source(lib, &"f();\n".repeat(501))).len(), 1);
        assert_eq!(lengths(&source("tests/run", &format!("#!/bin/bash\n{}", "f\n".repeat(80)))).len(), 1);
        assert_eq!(forgotten(&source("tests/suites/lost.rs", "")).len(), 1);
        assert_eq!(fences(&source(lib, "fn f() { unsafe { g() } } // unsafe\n// unsafe too\n")).len(), 1);
        assert_eq!(words(&source(lib, "// TODO: later\n#[ignore]\n")).len(), 2);
        assert_eq!(ascii(&source(lib, "// ok → fine\n// caf\u{e9}\n")).len(), 1);
        assert_eq!(lints(&source("tools/Cargo.toml", "[package]\n")).len(), 1);
    }

    #[test]
    fn a_module_file_is_found_in_its_parent() {
        let parent = Source { path: "scrfs/src/lib.rs".into(), text: "pub mod a;\nmod b;\n".into() };
        let module = |path: &str| Source { path: path.into(), text: String::new() };
        let all = [parent, module("scrfs/src/a/mod.rs"), module("scrfs/src/b.rs"), module("scrfs/src/ab.rs")];
        assert_eq!(forgotten(&all), ["scrfs/src/ab.rs: no `mod ab;` beside it"]);
    }
}
