//! What scripts, shells and operators rely on: exit statuses, JSON, the log, the configuration's commands, completions and
//! manual pages.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("squall-line-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A configuration file with this content.
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn squall(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(arguments).env_remove("RUST_LOG");
    command
}

/// Runs a command; returns its exit status, and what it prints to standard output and standard error.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The lines of standard error as they are printed.
fn log_of(child: &mut Child) -> mpsc::Receiver<String> {
    let log = BufReader::new(child.stderr.take().unwrap());
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || log.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
    lines
}

/// Waits for a line of the log that `fits`; returns it.
fn await_line(log: &mpsc::Receiver<String>, fits: impl Fn(&str) -> bool) -> String {
    let (deadline, mut seen) = (Instant::now() + SOON, Vec::new());
    while let Ok(line) = log.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if fits(&line) {
            return line;
        }
        seen.push(line);
    }
    panic!("the log has no such line: {seen:#?}");
}

fn member(name: &str, secret: &str, listen: &str, contact: &str, members: usize) -> String {
    format!(
        "cluster = \"{name}\"\nsecret = \"{secret}\"\nlisten = \"{listen}\"\ncontacts = [\"{contact}\"]\n\
         members = {members}\n[subgroups.log]\n"
    )
}

#[test]
fn a_configuration_is_checked() {
    let folder = Folder::new("config");
    let (status, example, _) = run(&mut squall(&["config", "example"]));
    assert_eq!(status, Some(0));
    let good = folder.file("good.toml", &example);
    let (status, text, _) = run(&mut squall(&["config", "check", &good]));
    assert!(
        status == Some(0) && text.contains("The group example") && text.contains("3 processes"),
        "{text}"
    );
    assert!(
        text.contains("The subgroup log") && text.contains("suspicion_after_ms  default   5000"),
        "{text}"
    );
    assert!(!text.contains("change me"), "the secret is printed: {text}");
    let (status, text, _) = run(&mut squall(&["config", "check", &good, "--json"]));
    let result = json(&text);
    assert_eq!((status, &result["valid"], &result["members"]), (Some(0), &true.into(), &3.into()));
    assert_eq!(result["subgroups"]["log"]["senders"], serde_json::json!([0, 1, 2]));
    assert!(!text.contains("change me"), "the secret is printed: {text}");
    let bad = folder.file("bad.toml", &example.replace("members = ", "membres = "));
    let (status, text, error) = run(&mut squall(&["config", "check", &bad]));
    assert!(status == Some(1) && text.is_empty() && error.contains("did you mean `members`?"), "{error}");
    let (status, text, _) = run(&mut squall(&["config", "check", &bad, "--json"]));
    assert!(status == Some(1) && json(&text)["error"].as_str().unwrap().contains("bad.toml:"), "{text}");
    let worse =
        example.replace("members = ", "membres = ").replace("[subgroups.log]", "[subgroups.log]\nwindow = 0");
    let worse = folder.file("worse.toml", &worse);
    let (status, _, error) = run(&mut squall(&["config", "check", &worse]));
    let lines = error.lines().count();
    assert!(status == Some(1) && error.contains("membres") && error.contains("`window = 0`"), "{error}");
    let (_, text, _) = run(&mut squall(&["config", "check", &worse, "--json"]));
    assert_eq!(json(&text)["errors"].as_array().map(Vec::len), Some(lines), "{text}");
    let (status, _, error) = run(&mut squall(&["config", "check", "/nonexistent"]));
    assert!(status == Some(1) && error.contains("cannot read /nonexistent"), "{error}");
}

/// The names of the commands that `squall --help` lists.
fn commands() -> Vec<String> {
    let (_, help, _) = run(&mut squall(&["--help"]));
    let list = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let names: Vec<String> = names.map(Into::into).collect();
    assert!(names.len() > 12, "{help}");
    names
}

#[test]
fn shells_and_manual_pages_know_the_commands() {
    let commands = commands();
    for shell in ["bash", "zsh", "fish"] {
        let (status, script, _) = run(&mut squall(&["completions", shell]));
        assert_eq!(status, Some(0), "{shell}");
        for word in commands.iter().map(String::as_str).chain(["log-format", "multicast", "verify"]) {
            assert!(script.contains(word), "{shell} lacks {word}: {script}");
        }
        assert!(!script.contains("stream-receiver"), "{shell} has a hidden command");
    }
    assert_eq!(run(&mut squall(&["completions", "dash"])).0, Some(2));
    let folder = Folder::new("man");
    let pages = folder.0.join("man1");
    let (status, _, error) = run(squall(&["man", "--out"]).arg(&pages));
    assert_eq!(status, Some(0), "{error}");
    let page =
        |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|_| panic!("no page {name}"));
    assert!(page("squall.1").contains(".SH \"EXIT STATUS\""));
    for name in commands {
        assert!(page(&format!("squall-{name}.1")).contains(&format!("squall {name}")), "{name}");
    }
    assert!(page("squall-bench-view.1").contains("rounds"));
    assert!(!pages.join("squall-member.1").exists(), "a hidden command");
    let (status, printed, _) = run(&mut squall(&["man", "node"]));
    assert_eq!((status, printed), (Some(0), page("squall-node.1")));
    let (status, _, error) = run(&mut squall(&["man", "nod"]));
    assert!(status == Some(1) && error.contains("no command `nod`"), "{error}");
}

/// The shells accept their scripts, as far as they are installed, and bash completes with its own.
#[test]
fn shells_accept_their_completions() {
    let folder = Folder::new("shells");
    for shell in ["bash", "zsh", "fish"] {
        let file = folder.file(shell, &run(&mut squall(&["completions", shell])).1);
        match Command::new(shell).args(["-n", &file]).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            Err(error) => eprintln!("skipped: {shell}: {error}"),
        }
    }
    let script = format!(
        "source {}/bash; COMP_WORDS=(squall config ch); COMP_CWORD=2; _squall squall ch config; echo \"${{COMPREPLY[@]}}\"",
        folder.0.display()
    );
    let (status, words, error) = run(Command::new("bash").args(["-c", &script]));
    assert_eq!((status, words.trim()), (Some(0), "check"), "{error}");
}

/// A member's log has a time, a level and no colours in each line, as text and as JSON; it has what happens while members
/// find each other, and why a process was refused.
#[test]
fn a_member_logs_what_happens() {
    let folder = Folder::new("log");
    let name = format!("squall-line-log-{}", std::process::id());
    let address = |rank: usize| format!("unix:@{name}-{rank}");
    let secret = "at least sixteen bytes";
    let first = folder.file("0.toml", &member(&name, secret, &address(0), &address(0), 1));
    let stranger = member(&name, "another secret, as long", &address(1), &address(0), 1);
    let stranger = folder.file("1.toml", &stranger);
    let differing = format!("{}window = 64\n", member(&name, secret, &address(1), &address(0), 1));
    let differing = folder.file("2.toml", &differing);
    for format in ["text", "json"] {
        let mut node = squall(&["node", "-c", &first, "--log-format", format]);
        let mut node = Running(node.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let log = log_of(&mut node.0);
        let line = await_line(&log, |line| line.contains("listening at"));
        match format {
            "json" => {
                let line = json(&line);
                assert_eq!((&line["level"], line["timestamp"].is_string()), (&"INFO".into(), true), "{line}");
                assert_eq!(line["message"], format!("listening at {}", address(0)));
            }
            _ => {
                let parts: Vec<&str> = line.split_whitespace().collect();
                assert!(parts[0].ends_with('Z') && parts[0].contains('T') && parts[1] == "INFO", "{line}");
                assert!(!line.contains('\u{1b}'), "a colour in a file: {line}");
            }
        }
        // Both ends say why, at once: `timeouts.join` is a minute.
        let begun = Instant::now();
        let (status, _, error) = run(&mut squall(&["node", "-c", &stranger]));
        assert!(status == Some(1) && error.contains("does not have the same secret"), "{error}");
        await_line(&log, |line| line.contains("refused") && line.contains("do not have the same secret"));
        let (status, _, error) = run(&mut squall(&["node", "-c", &differing]));
        let refusal =
            |here: u32, there: u32| format!("`window` of subgroup `log` is {here} here and {there} there");
        assert!(status == Some(1) && error.contains(&refusal(64, 256)), "{error}");
        await_line(&log, |line| line.contains("refused") && line.contains(&refusal(256, 64)));
        assert!(begun.elapsed() < Duration::from_secs(30), "after {:?}", begun.elapsed());
        // The last reason is about the secret, not a guess.
        let (status, _, error) = run(&mut squall(&["status", "-c", &stranger]));
        let last = error.lines().last().unwrap_or_default();
        assert!(status == Some(1) && last.contains("secret"), "{error}");
        assert!(!error.contains("is the group running"), "{error}");
    }
}

/// `-v` and `RUST_LOG` choose what is logged; the option comes first.
#[test]
fn the_log_is_chosen_by_option_and_environment() {
    let folder = Folder::new("choice");
    let name = format!("squall-line-choice-{}", std::process::id());
    let address = format!("unix:@{name}");
    let file = folder.file("0.toml", &member(&name, "at least sixteen bytes", &address, &address, 2));
    let log = |more: &[&str], variable: Option<&str>| {
        let mut node = squall(&[&["node", "-c", &file, "--timeout", "200ms"], more].concat());
        node.envs(variable.map(|value| ("RUST_LOG", value)));
        let (status, _, error) = run(&mut node);
        assert_eq!(status, Some(1), "{error}");
        error
    };
    assert!(log(&[], None).contains("listening at"));
    assert!(!log(&[], Some("error")).contains("listening at"));
    assert!(log(&["-v"], Some("error")).contains("listening at"));
    assert!(log(&[], Some("squall=verbose")).contains("RUST_LOG=\"squall=verbose\": write a level"));
    let alone = log(&[], Some("error"));
    assert!(alone.contains("1 of 2 members have joined"), "{alone}");
}

/// In systemd's journal each line has a priority and no time, and so has the reason why a command failed.
#[test]
fn the_log_suits_the_journal() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = Folder::new("journal");
    let name = format!("squall-line-journal-{}", std::process::id());
    let address = format!("unix:@{name}");
    let config = folder.file("0.toml", &member(&name, "at least sixteen bytes", &address, &address, 2));
    let journal = folder.0.join("journal");
    let log = |more: &[&str], inode_added: u64| {
        let file = std::fs::File::create(&journal).unwrap();
        let metadata = file.metadata().unwrap();
        let stream = format!("{}:{}", metadata.dev(), metadata.ino() + inode_added);
        let mut node = squall(&[&["node", "-c", &config, "--timeout", "200ms"], more].concat());
        let status = node.env("JOURNAL_STREAM", stream).stderr(file).stdout(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(1));
        std::fs::read_to_string(&journal).unwrap()
    };
    let text = log(&[], 0);
    assert!(
        text.lines().next().unwrap().starts_with("<6> INFO squall::commands::node: listening at"),
        "{text}"
    );
    assert!(text.lines().last().unwrap().starts_with("<3>squall: "), "{text}");
    let text = log(&["--log-format", "json"], 0);
    let line = json(text.lines().next().unwrap().strip_prefix("<6>").unwrap());
    assert_eq!(line["level"], "INFO");
    // Standard error is no longer the journal's.
    let text = log(&[], 1);
    assert!(!text.contains("<6>") && text.contains("Z  INFO "), "{text}");
}

/// All commands have the options of the log, and the log is not in the output.
#[test]
fn every_command_has_a_log() {
    for name in commands() {
        let (status, help, _) = run(&mut squall(&[&name, "--help"]));
        assert!(status == Some(0) && help.contains("--verbose") && help.contains("--log-format"), "{name}");
    }
    let (status, result, _) = run(&mut squall(&["simulate", "--seeds", "0..2", "--json", "-vvv"]));
    assert_eq!((status, &json(&result)["seeds"]), (Some(0), &2.into()), "{result}");
}

/// A run is written as a trace, whose slices nest, and as a drawing.
#[test]
fn a_run_is_written_as_trace_and_drawing() {
    let folder = Folder::new("lanes");
    let file = |name: &str| folder.0.join(name).display().to_string();
    let (trace, svg) = (file("run.json"), file("run.svg"));
    let arguments = ["explain", "3", "--scenario", "group", "--trace", &trace, "--svg", &svg, "--json"];
    let (status, result, error) = run(&mut squall(&arguments));
    assert_eq!((status, &json(&result)["seed"]), (Some(0), &3.into()), "{error}");
    let trace = json(&std::fs::read_to_string(trace).unwrap());
    let events = trace["traceEvents"].as_array().unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let (mut open, mut slices) = (Vec::<(f64, f64)>::new(), 0);
    // A parent is in front of what it contains, and the slices of a thread come together.
    for event in events {
        match event["ph"].as_str() {
            Some("X") => {
                let (begin, end) = (number(&event["ts"]), number(&event["ts"]) + number(&event["dur"]));
                open.retain(|(_, outer)| begin < *outer - 1e-4);
                assert!(open.iter().all(|(first, last)| *first <= begin && end <= last + 1e-4), "{event}");
                open.push((begin, end));
                slices += 1;
            }
            _ => open.clear(),
        }
    }
    assert!(slices > 10, "{slices}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("prefers-color-scheme"), "{svg}");
    let (status, _, error) = run(&mut squall(&["explain", "3", "--svg", "/nonexistent/run.svg"]));
    assert!(status == Some(1) && error.contains("failed to write /nonexistent/run.svg"), "{error}");
}

/// The release for scripts, and the protocol version for people who compare two releases.
#[test]
fn the_version_names_the_protocol() {
    assert_eq!(run(&mut squall(&["-V"])).1, concat!("squall ", env!("CARGO_PKG_VERSION"), "\n"));
    let (_, text, _) = run(&mut squall(&["--version"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], concat!("squall ", env!("CARGO_PKG_VERSION")));
    assert!(lines[1].starts_with("protocol version "), "{text}");
}

/// Members share a file that has no `listen`, and so do the commands that only ask or send.
#[test]
fn one_file_serves_members_and_clients() {
    let folder = Folder::new("shared");
    let address = format!("unix:@squall-line-shared-{}", std::process::id());
    let with_listen = member("shared", "at least sixteen bytes", "", &address, 1);
    let file = folder.file("squall.toml", &with_listen.replace("listen = \"\"\n", ""));
    let node = squall(&["node", "-c", &file, "--listen", &address]).stderr(Stdio::piped()).spawn();
    let mut node = Running(node.unwrap());
    await_line(&log_of(&mut node.0), |line| line.contains("1 of 1 members"));
    let (status, text, error) = run(&mut squall(&["send", "-c", &file, "log", "hello"]));
    assert_eq!(status, Some(0), "{text} {error}");
    let (status, text, error) = run(&mut squall(&["status", "-c", &file]));
    assert!(status == Some(0) && text.contains(&address), "{text} {error}");
    let (status, _, error) = run(&mut squall(&["node", "-c", &file]));
    assert!(status == Some(1) && error.contains("`listen` is missing"), "{error}");
}

/// Ctrl-C ends a simulation with the result of the runs so far.
#[test]
fn an_interrupted_simulation_prints_what_it_did() {
    let mut simulate = squall(&["simulate", "--scenario", "sst", "--seeds", "0..1000000000", "--json"]);
    let child = simulate.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let result = json(&String::from_utf8(stdout).unwrap());
    assert_eq!(status.code(), Some(130), "{result}");
    assert!(result["interrupted"] == true && result["seeds"].as_u64() > Some(0), "{result}");
    assert!(String::from_utf8_lossy(&stderr).contains("interrupted"));
}

#[test]
fn figures_are_listed_and_printed_as_tables() {
    let (status, text, _) = run(&mut squall(&["bench", "figures"]));
    assert!(status == Some(0) && text.lines().any(|line| line.starts_with("rdmc ")), "{text}");
    let (status, text, _) = run(&mut squall(&["bench", "figures", "rdmc", "figure-4"]));
    assert!(status == Some(0) && text.contains("\n| milliseconds |\n|---|\n| 54.5 |\n"), "{text}");
    let (status, text, error) = run(&mut squall(&["bench", "figures", "rdmc", "figure-4", "figure-1"]));
    assert!(status == Some(1) && text.is_empty() && error.contains("figure-11a, figure-11b"), "{error}");
}
