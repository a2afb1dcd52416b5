//! Commands that pages show: each subcommand and each option of `squall` exists, as its help says.

use std::collections::BTreeMap;
use std::process::Command;

use crate::source::{SourceFile, numbered};

/// The help of commands that were asked before, by their words.
pub(crate) type Helps = BTreeMap<String, String>;

/// Commands of `squall` in `page`, in fenced code and in backticks, that do not exist or do not have these options.
/// `help` returns the help of a command, `squall bench` for one; nothing if there is no such command.
pub(crate) fn faults(page: &SourceFile, help: &mut impl FnMut(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for (n, command) in commands(&page.text.replace("cargo run --release -- ", "squall ")) {
        // `squall help bench` is about `squall bench`.
        let words: Vec<&str> = command.split_whitespace().filter(|word| *word != "help").collect();
        let (mut name, mut text) = ("squall".to_owned(), help("squall").unwrap_or_default());
        for word in words[1..].iter().take_while(|word| is_name(word)) {
            if !text.contains("<COMMAND>") {
                break;
            }
            name = format!("{name} {word}");
            let Some(found) = help(&name) else {
                faults.push(format!("{}:{n}: there is no command `{name}`", page.path));
                break;
            };
            text = found;
        }
        let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        for option in options.map(|word| word.trim_end_matches(|c: char| !c.is_ascii_lowercase())) {
            if !text.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == option) {
                faults.push(format!("{}:{n}: `{name}` has no option `{option}`", page.path));
            }
        }
    }
    faults
}

/// The help of a command of the program under test; nothing if it has no such command.
pub(crate) fn help(helps: &mut Helps, name: &str) -> Option<String> {
    if let Some(help) = helps.get(name) {
        return Some(help.clone()).filter(|help| !help.is_empty());
    }
    let words = name.split_whitespace().skip(1);
    let output = Command::new(env!("CARGO_BIN_EXE_squall")).args(words).arg("--help").output();
    let output = output.expect("the program can be started");
    let text = if output.status.success() {
        String::from_utf8_lossy(&output.stdout).into_owned()
    } else {
        String::new()
    };
    helps.insert(name.to_owned(), text.clone());
    Some(text).filter(|text| !text.is_empty())
}

/// Whether `word` may name a subcommand.
fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase())
}

/// The commands that begin with `squall `, each from there to its end, with their lines. A backslash continues a line of
/// code.
fn commands(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut continues) = (false, false);
    let mut inline = (0, None::<String>);
    for (n, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            (is_code, continues) = (!is_code, false);
            continue;
        }
        if is_code {
            let line = line.split(" #").next().unwrap_or(line);
            let part = if continues {
                Some(line)
            } else {
                line.find("squall ").filter(|at| begins(line, *at)).map(|at| &line[at..])
            };
            if let Some(part) = part {
                let part = part.trim_end_matches('\\');
                match found.last_mut().filter(|_| continues) {
                    Some((_, command)) => command.push_str(part),
                    None => found.push((n, part.to_owned())),
                }
            }
            continues = part.is_some() && line.trim_end().ends_with('\\');
            continue;
        }
        // Backticks may stand around the end of a line.
        if line.trim().is_empty() {
            inline = (0, None);
        }
        let mut parts = line.split('`');
        if let (Some(open), Some(rest)) = (&mut inline.1, parts.next()) {
            open.push(' ');
            open.push_str(rest);
        }
        for part in parts {
            match inline.1.take() {
                Some(command) => found.extend(command.starts_with("squall ").then_some((inline.0, command))),
                None => inline = (n, Some(part.to_owned())),
            }
        }
    }
    found
}

/// Whether a command begins at `at`: behind nothing, a blank or a quotation mark, and not as the name of a package for cargo.
fn begins(line: &str, at: usize) -> bool {
    let is_package = line[..at].ends_with(" -p ");
    !is_package && line[..at].chars().next_back().is_none_or(|c| c.is_whitespace() || "'\"".contains(c))
}

#[test]
fn a_command_that_does_not_exist_is_refused() {
    let mut help = |name: &str| match name {
        "squall" | "squall bench" => Some("Usage: <COMMAND>".to_owned()),
        "squall bench view" => Some("--rounds <N>\n  -c, --config <FILE>\n".to_owned()),
        "squall send" => Some("--resend".to_owned()),
        _ => None,
    };
    let mut faults = |text: &str| faults(&SourceFile::new("a.md", text), &mut help);
    let good = "`squall help bench view`, `squall bench view --rounds 3`, `squall\nsend log --resend`, `squall::trace`\n```\n$ squall bench view \\\n  --config FILE # --none\ncargo run -p squall --example a\n```\n";
    assert_eq!(faults(good), Vec::<String>::new());
    assert_eq!(faults("\n`squall bench views`"), ["a.md:2: there is no command `squall bench views`"]);
    assert_eq!(faults("`squall send log --round`."), ["a.md:1: `squall send` has no option `--round`"]);
    assert_eq!(faults("```\nsquall bench view \\\n  --round 1\n```\n").len(), 1);
    assert_eq!(faults("`cargo run --release -- demo`").len(), 1);
}
