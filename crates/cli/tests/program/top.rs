//! `squall top` without a terminal: rates and view changes of real members, as a table and as JSON.

use squall_fabric::atomics::{AtomicBool, Ordering};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use squall::{Config, Group};

/// A configuration file, removed at the end.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ends the members, also when the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn top(file: &File, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.arg("top").arg("-c").arg(&file.0).args(more).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn configuration(name: &str, rank: usize) -> String {
    format!(
        "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@{name}-{rank}\"\n\
         contacts = [\"unix:@{name}-0\"]\nmembers = 2\nrank = {rank}\n[subgroups.log]\nsenders = [0]\n"
    )
}

/// One member sends, both deliver, one by upcall and one by pulling; then a third one comes.
#[test]
fn rates_are_those_of_the_members() {
    let name = format!("squall-top-{}", std::process::id());
    let file = File(std::env::temp_dir().join(format!("{name}.toml")));
    std::fs::write(&file.0, configuration(&name, 0)).unwrap();
    let is_over = AtomicBool::new(false);
    let join = |rank| Config::parse(&configuration(&name, rank)).unwrap();
    thread::scope(|scope| {
        let is_over = &is_over;
        let _ending = Ending(is_over);
        scope.spawn(move || {
            let mut group = Group::builder(join(0)).on_message("log", |_| ()).join().unwrap();
            let mut sender = group.subgroup("log").unwrap().sender().unwrap();
            while !is_over.load(Ordering::SeqCst) {
                sender.send_blocking(1, |bytes| bytes[0] = 1).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(move || {
            let mut group = Group::join(join(1)).unwrap();
            let mut deliveries = group.subgroup("log").unwrap().deliveries().unwrap();
            while !is_over.load(Ordering::SeqCst) {
                drop(deliveries.try_next());
                thread::sleep(Duration::from_micros(100));
            }
        });
        let third = scope.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            let group = Group::builder(join(2)).on_message("log", |_| ()).join().unwrap();
            while !is_over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            drop(group);
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        let shown = loop {
            let output = top(&file, &["--once", "--json"]);
            let shown: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
            let is_whole = |shown: &serde_json::Value| {
                let members = shown["members"].as_array().unwrap();
                let delivers =
                    |member: &serde_json::Value| member["delivered_per_second"].as_f64() > Some(1.0);
                members.len() == 3 && members.iter().all(delivers)
            };
            if let Some(shown) = shown.filter(is_whole) {
                break shown;
            }
            assert!(
                Instant::now() < deadline && !third.is_finished(),
                "{}{}",
                text(&output.stdout),
                text(&output.stderr)
            );
        };
        let members = shown["members"].as_array().unwrap();
        assert!(members[0]["sent_per_second"].as_f64() > Some(1.0), "{shown}");
        assert_eq!(members[1]["sent_per_second"].as_f64(), Some(0.0), "{shown}");
        assert!(members.iter().all(|member| member["state"] == "ready" && member["view"] == 1), "{shown}");
        let change = &shown["changes"][0];
        assert_eq!((&change["to"], &change["members"], &change["joined"]), (&1.into(), &3.into(), &1.into()));
        assert!(change["took_micros"].as_u64() > Some(0), "{shown}");

        // Without a terminal there is one table.
        let output = top(&file, &[]);
        let table = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{table}{}", text(&output.stderr));
        assert!(
            table.lines().next().unwrap().starts_with("address")
                && table.contains("view 1: 3 members; 1 new, took "),
            "{table}"
        );
    });
}

#[test]
fn a_group_that_does_not_run_is_an_error() {
    let name = format!("squall-top-none-{}", std::process::id());
    let file = File(std::env::temp_dir().join(format!("{name}.toml")));
    std::fs::write(&file.0, configuration(&name, 0)).unwrap();
    let output = top(&file, &["--once"]);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(1), ""),
        "{}",
        text(&output.stderr)
    );
    let output = top(&file, &["--interval", "1ms"]);
    assert!(
        output.status.code() == Some(2) && text(&output.stderr).contains("100ms or more"),
        "{}",
        text(&output.stderr)
    );
}
