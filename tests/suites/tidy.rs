//! The house rules, on the sources that this was built from.

use scrfs_harness::cluster::{bin_dir, workspace};
use scrfs_harness::pages;
use scrfs_harness::tidy::{self, Source};

#[track_caller]
fn holds(rule: fn(&[Source]) -> Vec<String>) {
    let sources = tidy::sources(&workspace()).expect("the sources");
    assert!(sources.len() > 20, "only {} sources found", sources.len());
    let broken = rule(&sources);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn the_top_level_is_small() {
    let broken = tidy::top_level(&workspace()).expect("the top level");
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn dependencies_go_one_way() {
    holds(tidy::layers);
}

#[test]
fn foreign_interfaces_have_one_adapter_each() {
    holds(tidy::adapters);
}

#[test]
fn every_lock_has_a_rank() {
    holds(tidy::locks);
}

#[test]
fn the_boundary_has_no_default_bodies() {
    holds(tidy::defaults);
}

#[test]
fn files_are_short() {
    holds(tidy::lengths);
}

#[test]
fn no_file_is_forgotten() {
    holds(tidy::forgotten);
}

#[test]
fn unsafe_code_is_fenced() {
    holds(tidy::fences);
}

#[test]
fn pure_logic_is_pure() {
    holds(tidy::purity);
}

#[test]
fn structs_are_narrow() {
    holds(tidy::fields);
    // It bites.
    let fields = "    pub(crate) f: u8,\n".repeat(13);
    let source = Source { path: "scrfs/src/x.rs".into(), text: format!("pub struct Wide {{\n{fields}}}\n") };
    let broken = tidy::fields(&[source]);
    assert_eq!(broken.iter().filter(|text| text.contains("x.rs: Wide: 13")).count(), 1, "{broken:?}");
}

#[test]
fn parts_do_not_import_one_another() {
    holds(tidy::circles);
    // It bites.
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let sources = [
        source("scrfs/src/fs/open.rs", "use crate::daemon::Node;\n"),
        source("scrfs/src/daemon/node.rs", "use crate::fs::FileSystem;\n// crate::log\n"),
        source("scrfs/src/log.rs", "use crate::daemon::Node;\n"),
    ];
    let broken = tidy::circles(&sources);
    assert_eq!(broken.iter().filter(|text| text.contains("import one another")).count(), 1, "{broken:?}");
}

#[test]
fn nothing_is_left_lying_about() {
    holds(tidy::words);
}

#[test]
fn sources_are_ascii() {
    holds(tidy::ascii);
}

#[test]
fn comments_are_wrapped() {
    holds(tidy::columns);
    // It bites: not a table, not code.
    let long = "long ".repeat(30);
    let text =
        format!("    // {long}\n/// | {long}\n//! ```\n//! {long}\n//! ```\n/// {long}\nlet {long};\n");
    let bad = Source { path: "scrfs/src/lib.rs".into(), text };
    assert_eq!(tidy::columns(&[bad]).len(), 2);
}

#[test]
fn every_package_obeys_the_lints() {
    holds(tidy::lints);
}

#[test]
fn the_tables_are_up_to_date() {
    holds(tidy::tables);
}

#[test]
fn pages_name_what_is_there() {
    let sources = tidy::sources(&workspace()).expect("the sources");
    let named = ["README.md", "scrfs/docs/operations.md"];
    let pages: Vec<&Source> = sources.iter().filter(|s| named.contains(&s.path.as_str())).collect();
    assert_eq!(pages.len(), named.len());
    let mut broken = pages::links(&workspace(), &sources);
    broken.extend(pages::commands(&workspace(), &bin_dir(), &pages));
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
    // It bites.
    let text = "`scrfs-ctl statsu`, `status --jsn`, `--no-such`, `tests/walk`, [x](y.md)\n    scrfs mount --frobnicate /scr -- --x\n";
    let bad = Source { path: "README.md".into(), text: text.into() };
    assert_eq!(pages::commands(&workspace(), &bin_dir(), &[&bad]).len(), 5);
    assert_eq!(pages::links(&workspace(), &[bad]).len(), 1);
}

#[test]
fn pages_name_files_that_are_there() {
    let sources = tidy::sources(&workspace()).expect("the sources");
    let broken = pages::files(&workspace(), &sources, &sources);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
    // It bites: two that are not there, and one that may be any of several.
    let text = "`scrfs/src/gone.rs`, `fs/gone.rs`, `mod.rs`, `scrfs/src/fs/open.rs`, `fs/open.rs`, `scrfs/src/fs/`, `.scr/flush.rst`\n";
    let bad = Source { path: "README.md".into(), text: text.into() };
    assert_eq!(pages::files(&workspace(), &[bad], &sources).len(), 3);
}

#[test]
fn the_page_of_the_protocol_has_every_message_once() {
    let sources = tidy::sources(&workspace()).expect("the sources");
    let page = sources.iter().find(|s| s.path == "scrfs/docs/protocol.md").expect("the page");
    let broken = pages::messages(&sources, page);
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
    // It bites.
    let row = page.text.lines().find(|line| line.starts_with("| `Command::Freeze` |")).expect("a row");
    let row = format!("{row}\n");
    let edits = [
        (page.text.replace(&row, ""), 1),
        (page.text.replace(&row, &row.repeat(2)), 1),
        (page.text.replace(&row, &row.replace("Command::Freeze", "Command::Chill")), 3),
        (page.text.replace(&row, "| `Command::Freeze` | lead |\n"), 1),
        (format!("{}`Event::Thawed`\n", page.text), 1),
    ];
    for (text, wanted) in edits {
        let broken = pages::messages(&sources, &Source { path: page.path.clone(), text });
        assert_eq!(broken.len(), wanted, "{broken:?}");
    }
}
