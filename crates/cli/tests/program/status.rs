//! `squall status` with a member that takes no messages: it is named, and the exit status says that not all is well.

use squall_fabric::atomics::{AtomicBool, Ordering};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use squall::{Config, Group};

/// A configuration file, removed at the end.
struct File(std::path::PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn status(file: &File, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    let output = command.arg("status").arg("-c").arg(&file.0).args(more).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn who_holds_a_subgroup_up_is_named() {
    let name = format!("squall-status-{}", std::process::id());
    let file = File(std::env::temp_dir().join(format!("{name}.toml")));
    let config = |rank: usize| {
        format!(
            "cluster = \"{name}\"\nsecret = \"at least sixteen bytes\"\nlisten = \"unix:@{name}-{rank}\"\ncontacts = [\"unix:@{name}-0\"]\n\
             members = 2\nrank = {rank}\n[subgroups.log]\nwindow = 8\n"
        )
    };
    std::fs::write(&file.0, config(0)).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let config = Config::parse(&config(0)).unwrap();
            let mut group = Group::builder(config).on_message("log", |_| ()).join().unwrap();
            let mut sender = group.subgroup("log").unwrap().sender().unwrap();
            let deadline = Instant::now() + Duration::from_secs(20);
            while !is_over.load(Ordering::SeqCst) && Instant::now() < deadline {
                // Full, most of the time.
                let _ = sender.send(1, |bytes| bytes[0] = 1);
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut group = Group::join(Config::parse(&config(1)).unwrap()).unwrap();
        let mut deliveries = group.subgroup("log").unwrap().deliveries().unwrap();
        thread::sleep(Duration::from_millis(1500));
        let (code, text) = status(&file, &["--stalled-after", "500ms"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("log: held up by member 1 for "), "{text}");
        let row = text.lines().find(|line| line.contains("unix:@") && line.contains("-0 ")).unwrap();
        assert!(row.ends_with(" 1 (consumer)"), "the column names it: {text}");
        let (code, text) = status(&file, &["--json", "--stalled-after", "1h"]);
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((code, &report["well"]), (Some(0), &true.into()), "an hour is not over: {text}");
        assert_eq!(
            (&report["stalls"][0]["subgroup"], &report["stalls"][0]["rank"]),
            (&"log".into(), &1.into())
        );
        assert!(report["stalls"][0]["seconds"].as_f64() >= Some(1.0), "{text}");
        assert!(report["members"][0]["status"]["subgroups"][0]["held_up_by"]["millis"].is_u64(), "{text}");

        let taking = AtomicBool::new(true);
        thread::scope(|inner| {
            inner.spawn(|| {
                while taking.load(Ordering::SeqCst) {
                    let _ = deliveries.try_next();
                }
            });
            thread::sleep(Duration::from_millis(500));
            let (code, text) = status(&file, &["--stalled-after", "500ms"]);
            taking.store(false, Ordering::SeqCst);
            assert!(code == Some(0) && !text.contains("log: held up"), "{text}");
        });
        is_over.store(true, Ordering::SeqCst);
    });
}
