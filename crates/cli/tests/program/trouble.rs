//! Members that find the wrong folder, or have the wrong secret, and what is seen of it: that has to be what the book's page says.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::trouble_page::assert_seen;

const SOON: Duration = Duration::from_secs(60);

/// Members in one folder, each with a durable subgroup; all end with it.
pub(crate) struct Members {
    name: String,
    pub(crate) folder: PathBuf,
    running: Vec<Child>,
}

/// How the configuration of a member differs.
#[derive(Clone, Copy)]
pub(crate) struct MemberPlan<'p> {
    cluster: &'p str,
    secret: &'p str,
    members: usize,
    /// In `[storage]`.
    storage: &'p str,
}

pub(crate) const PLAN: MemberPlan<'_> =
    MemberPlan { cluster: "one", secret: "at least sixteen bytes", members: 2, storage: "" };

impl Members {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("squall-{test}-{}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        Self { name, folder, running: Vec::new() }
    }

    fn configuration(&self, file: &str, rank: usize, plan: MemberPlan<'_>) -> PathBuf {
        let MemberPlan { cluster, secret, members, storage } = plan;
        let addresses = [0, 1].map(|rank| format!("unix:@{}-{rank}", self.name));
        let text = format!(
            "cluster = \"{}-{cluster}\"\nsecret = \"{secret}\"\nlisten = \"{}\"\ncontacts = {addresses:?}\nmembers = {members}\nrank = {rank}\n\
             [subgroups.log]\nmessage_max = 100\nwindow = 16\nmode = \"durable\"\n[storage]\npath = {:?}\n{storage}",
            self.name,
            addresses[rank],
            self.folder.join("logs"),
        );
        let file = self.folder.join(file);
        std::fs::write(&file, text).unwrap();
        file
    }

    pub(crate) fn squall(&self, command: &str, rank: usize, plan: MemberPlan<'_>) -> Command {
        // A node may read its file when the next command is made.
        let program = command.split(' ').next().unwrap_or_default();
        let file = self.configuration(&format!("{program}-{rank}.toml"), rank, plan);
        let mut squall = Command::new(env!("CARGO_BIN_EXE_squall"));
        squall.args(command.split(' ')).arg("-c").arg(file).stdin(Stdio::null());
        squall
    }

    /// Starts a member, whose log is in a file; returns its place.
    pub(crate) fn start(&mut self, rank: usize, plan: MemberPlan<'_>) -> usize {
        let log = std::fs::File::create(self.log_file(rank)).unwrap();
        let mut node = self.squall("node --timeout 20s", rank, plan);
        self.running.push(node.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        self.running.len() - 1
    }

    fn log_file(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("{rank}.log"))
    }

    fn log(&self, rank: usize) -> String {
        std::fs::read_to_string(self.log_file(rank)).unwrap()
    }

    /// Waits until a member answers that has a view of this size.
    pub(crate) fn await_members(&self, rank: usize, count: usize) {
        await_that("the members are in one view", || {
            let address = format!("unix:@{}-{rank}", self.name);
            let status = self.squall(&format!("status --json {address}"), rank, PLAN).output().unwrap();
            let Ok(report) = serde_json::from_slice::<serde_json::Value>(&status.stdout) else {
                return false;
            };
            let own =
                report["members"].as_array().unwrap().iter().find(|line| line["address"] == address.as_str());
            let status = own.map(|line| &line["status"]).filter(|status| status["ready"] == true);
            status.is_some_and(|status| status["members"].as_array().is_some_and(|all| all.len() == count))
        });
    }

    /// Sends a message to the group of a member.
    pub(crate) fn send(&self, rank: usize, plan: MemberPlan<'_>) {
        let Output { status, stderr, .. } =
            self.squall("send log message --timeout 40s", rank, plan).output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }

    pub(crate) fn kill(&mut self, place: usize) {
        self.running[place].kill().unwrap();
        self.running[place].wait().unwrap();
    }

    /// Lets a member leave in order.
    fn end(&mut self, place: usize) {
        let pid = self.running[place].id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        assert!(self.running[place].wait().unwrap().success());
    }

    /// Waits until a member has failed; returns its log.
    fn await_failure(&mut self, place: usize, rank: usize) -> String {
        let child = &mut self.running[place];
        await_that("the member ends", || child.try_wait().unwrap().is_some());
        assert_eq!(self.running[place].wait().unwrap().code(), Some(1), "{}", self.log(rank));
        self.log(rank)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// A member continues alone twice, from a view that its folder has been set back to: the other one knows another view of that number.
#[test]
fn an_older_copy_of_a_folder_is_found_out_as_the_page_says() {
    let mut members = Members::new("older");
    let (own, older) = (members.folder.join("logs/rank-1"), members.folder.join("older"));
    let first = members.start(0, PLAN);
    let second = members.start(1, PLAN);
    members.await_members(1, 2);
    members.send(1, PLAN);
    members.end(first);
    members.await_members(1, 1);
    copy(&own, &older);
    let first = members.start(0, PLAN);
    members.await_members(0, 2);
    members.send(0, PLAN);
    members.end(second);
    members.await_members(0, 1);
    members.send(0, PLAN);
    members.kill(first);

    copy(&older, &own);
    let mut second = members.start(1, PLAN);
    members.await_members(1, 1);
    let first = members.start(0, PLAN);
    members.await_members(0, 1);
    let status = members.squall("status", 1, PLAN).output().unwrap();
    let text = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(1), "{text}");
    assert_seen("two groups, after an older copy", "squall status", &text);
    members.kill(first);

    // Until it knows a view of the number that the other one knows, too.
    for _ in 0..2 {
        members.kill(second);
        second = members.start(1, PLAN);
        members.await_members(1, 1);
    }
    let first = members.start(0, PLAN);
    let log = members.await_failure(first, 0);
    assert_seen("folder set back to an older copy", "the log", &log);
    let status = members.squall("status", 1, PLAN).output().unwrap();
    assert_seen(
        "folder set back to an older copy",
        "squall status",
        &String::from_utf8_lossy(&status.stdout),
    );
}

#[test]
fn a_folder_of_another_group_is_refused_as_the_page_says() {
    let mut members = Members::new("foreign");
    let [first, second] = [0, 1].map(|rank| members.start(rank, PLAN));
    members.await_members(1, 2);
    members.send(1, PLAN);
    members.kill(first);
    members.kill(second);

    let other = members.start(0, MemberPlan { cluster: "two", ..PLAN });
    assert_seen("folder of another cluster", "the log", &members.await_failure(other, 0));

    std::fs::remove_dir_all(members.folder.join("logs/rank-0")).unwrap();
    let alone = MemberPlan { members: 1, storage: "begin = \"new\"\n", ..PLAN };
    members.start(0, alone);
    members.await_members(0, 1);
    let earlier = members.start(1, PLAN);
    assert_seen("folder of an earlier group", "the log", &members.await_failure(earlier, 1));
    let status = members.squall("status", 0, PLAN).output().unwrap();
    assert_seen("folder of an earlier group", "squall status", &String::from_utf8_lossy(&status.stdout));
}

#[test]
fn a_wrong_secret_is_seen_as_the_page_says() {
    let mut members = Members::new("secrets");
    members.start(0, MemberPlan { members: 1, ..PLAN });
    members.await_members(0, 1);
    let wrong = MemberPlan { secret: "another secret, as long", ..PLAN };
    let joiner = members.squall("node --timeout 2s", 1, wrong).output().unwrap();
    assert_eq!(joiner.status.code(), Some(1));
    assert_seen("secret wrong", "the log", &String::from_utf8_lossy(&joiner.stderr));
    assert_seen("secret wrong", "the log", &members.log(0));
    let status = members.squall("status", 1, wrong).output().unwrap();
    assert_eq!(status.status.code(), Some(1));
    assert_seen("secret wrong", "squall status", &String::from_utf8_lossy(&status.stderr));
}
