//! Manual pages and completions. They are made from the programs' own command lines and from the
//! table of parameters, so that they cannot miss an option; what no table knows (examples, exit
//! codes, files) is in texts beside the programs, in the `man` macros, and follows the generated
//! part.
//!
//! Each program writes its own when its first argument is [`OPTION`] and the second a directory,
//! laid out as `/usr/share`.

mod parameters;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgGroup, Command, Id};
use clap_complete::Shell;
use clap_mangen::Man;

/// The hidden first argument.
pub const OPTION: &str = "--write-manual";

/// What makes a program's page, besides its command line.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// The program's name.
    pub name: &'static str,
    /// The manual's section.
    pub section: u8,
    /// What follows options and verbs, in `man` macros.
    pub text: &'static str,
}

/// Pages that belong to no program; `scrfs` writes them.
const OVERVIEW: &str = include_str!("scrfs.7");
const CONFIGURATION: &str = include_str!("scrfs.conf.5");
/// Stands in a text for the version.
const VERSION: &str = "@VERSION@";
/// Stands in [`CONFIGURATION`] for the table of parameters.
const TABLE: &str = "@PARAMETERS@";

/// Writes page and completions of `command` if the arguments ask for it, and says how the program
/// is to end then. `others`: also the pages that belong to no program.
pub fn when_asked(
    arguments: impl IntoIterator<Item = OsString>,
    command: impl FnOnce() -> Command,
    page: Page,
    others: bool,
) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != OPTION {
        return None;
    }
    let share = PathBuf::from(arguments.next()?);
    let command = command();
    let others = if others { other_pages() } else { Vec::new() };
    let written = files(&command, page)
        .into_iter()
        .chain(others)
        .try_for_each(|(path, text)| write(&share.join(path), &text));
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write;
            let hint = crate::remedy::of(&error);
            let _ = writeln!(io::stderr(), "{}: {}: {error}\nhint: {hint}", page.name, share.display());
            ExitCode::FAILURE
        }
    })
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, text)
}

/// Paths below `/usr/share`, and their contents.
fn files(command: &Command, page: Page) -> Vec<(String, Vec<u8>)> {
    let command = public(page.name, command);
    let name = page.name;
    let completion = |shell: Shell| {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), name, &mut text);
        if shell == Shell::Bash { with_cases_of_verbs(name, &text) } else { text }
    };
    vec![
        (format!("man/man{0}/{name}.{0}", page.section), render(&command, page).into_bytes()),
        (format!("bash-completion/completions/{name}"), completion(Shell::Bash)),
        (format!("zsh/vendor-completions/_{name}"), completion(Shell::Zsh)),
        (format!("fish/vendor_completions.d/{name}.fish"), completion(Shell::Fish)),
    ]
}

/// Where `clap_complete` says what is completed after the verbs, and only there, it takes a hyphen
/// in a program's name for what is between a program and its verb.
fn with_cases_of_verbs(name: &str, completion: &[u8]) -> Vec<u8> {
    let [cases, verbs] = ["__subcmd__", "__"].map(|hyphen| name.replace('-', hyphen) + "__subcmd__");
    String::from_utf8_lossy(completion).replace(&cases, &verbs).into_bytes()
}

fn other_pages() -> Vec<(String, Vec<u8>)> {
    let configuration = versioned(CONFIGURATION).replace(TABLE, parameters::table().trim_end());
    vec![
        ("man/man7/scrfs.7".to_owned(), versioned(OVERVIEW).into_bytes()),
        ("man/man5/scrfs.conf.5".to_owned(), configuration.into_bytes()),
        ("doc/scrfs/scrfs.conf".to_owned(), parameters::example().into_bytes()),
    ]
}

fn versioned(text: &str) -> String {
    text.replace(VERSION, env!("CARGO_PKG_VERSION"))
}

/// The command line without what is hidden: the programs use that among themselves.
fn public(name: &'static str, command: &Command) -> Command {
    let verbs: Vec<Command> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(shown).collect();
    let mut public = with_parts_of(Command::new(name), command)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(!verbs.is_empty())
        .disable_help_subcommand(true)
        .subcommands(verbs);
    public.build();
    public
}

/// A verb without its hidden options.
fn shown(verb: &Command) -> Command {
    // This process ends when it has written all.
    let name: &'static str = verb.get_name().to_owned().leak();
    with_parts_of(Command::new(name), verb)
}

fn with_parts_of(shown: Command, command: &Command) -> Command {
    let arguments: Vec<Arg> =
        command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().collect();
    let is_there = |id: &Id| arguments.iter().any(|argument| argument.get_id() == id);
    let groups = command.get_groups().filter(|group| group.get_args().all(is_there)).cloned();
    let groups: Vec<ArgGroup> = groups.collect();
    let shown = shown.about(command.get_about().cloned().unwrap_or_default()).args(arguments).groups(groups);
    match command.get_long_about() {
        Some(long) => shown.long_about(long.clone()),
        None => shown,
    }
}

fn render(command: &Command, page: Page) -> String {
    let man = |command: &Command| Man::new(command.clone()).section(page.section.to_string());
    let part = |draw: &dyn Fn(&mut dyn io::Write) -> io::Result<()>| {
        let mut text = Vec::new();
        // Nothing fails in memory.
        let _ = draw(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    };
    let whole = man(command);
    let title = part(&|out| whole.render_title(out));
    // Without a date of its own, it would have the version in the date's place.
    let begins = title.find(".TH ").unwrap_or_default();
    let mut text =
        format!("{}.TH {} {} \"\" \"{}\" scrfs\n", &title[..begins], page.name, page.section, source());
    text += &part(&|out| whole.render_name_section(out));
    text += &part(&|out| whole.render_synopsis_section(out));
    text += &part(&|out| whole.render_description_section(out));
    text += &part(&|out| whole.render_options_section(out));
    let mut verbs = command.get_subcommands().peekable();
    if verbs.peek().is_some() {
        text += ".SH VERBS\n";
    }
    for verb in verbs {
        let page = man(verb);
        text.extend([".SS ", verb.get_name(), "\n"]);
        text += &body(&part(&|out| page.render_synopsis_section(out)));
        text += ".PP\n";
        text += &body(&part(&|out| page.render_description_section(out)));
        text += &body(&part(&|out| page.render_options_section(out)));
    }
    text + &versioned(page.text)
}

fn source() -> String {
    format!("scrfs {}", env!("CARGO_PKG_VERSION"))
}

/// A section without its heading, and without what only the page's first one needs.
fn body(section: &str) -> String {
    let kept = section.lines().filter(|line| !line.starts_with(".SH ") && !line.starts_with(".ie "));
    kept.filter(|line| !line.starts_with(".el ")).fold(String::new(), |text, line| text + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Command {
        Command::new("sample")
            .about("Does it")
            .subcommand(
                Command::new("go")
                    .about("Goes")
                    .arg(Arg::new("far").long("far").help("How far"))
                    .arg(Arg::new("inner").long("inner").hide(true)),
            )
            .subcommand(Command::new("inner").hide(true))
    }

    #[test]
    fn a_page_has_every_public_verb_and_option_and_its_own_text() {
        let page = Page { name: "sample", section: 8, text: ".SH FILES\n@VERSION@\n" };
        let all = files(&sample(), page);
        let (path, text) = &all[0];
        let text = String::from_utf8_lossy(text);
        assert_eq!(path, "man/man8/sample.8");
        for part in
            ["Does it", ".SS go", "\\-\\-far", "How far", concat!(".SH FILES\n", env!("CARGO_PKG_VERSION"))]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        for (path, text) in &all {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains("inner"), "{path}");
            assert!(text.contains("far"), "{path}");
        }
    }

    #[test]
    fn it_is_written_only_when_asked_for() {
        let page = Page { name: "sample", section: 1, text: "" };
        let dir = tempfile::tempdir().unwrap();
        let ask = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            when_asked(words, sample, page, true)
        };
        assert!(ask(&["sample", "go"]).is_none() && ask(&["sample"]).is_none());
        let share = dir.path().join("share");
        assert!(ask(&["sample", OPTION, share.to_str().unwrap()]).is_some());
        let table = std::fs::read_to_string(share.join("man/man5/scrfs.conf.5")).unwrap();
        for parameter in crate::config::defs::PARAMETERS {
            assert!(table.contains(&format!(".B {}\n", parameter.name)), "{}", parameter.name);
        }
        assert!(!table.contains('@') && share.join("man/man7/scrfs.7").exists());
        assert!(share.join("fish/vendor_completions.d/sample.fish").exists());
    }
}
