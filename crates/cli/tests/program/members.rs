//! The command with its real member processes: they agree, they are measured, and they never outlive it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use squall_transports::reserve_port;

use rustix::process::{Pid, Signal, kill_process};

/// The time for anything that should happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

fn squall(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

fn output(arguments: &str) -> Output {
    squall(arguments).output().expect("the program can be started")
}

/// What a command that succeeds prints, as JSON.
fn json(arguments: &str) -> serde_json::Value {
    let output = output(arguments);
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A folder for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("squall-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The processes that `parent` has started and that still run, oldest first.
fn children(parent: u32) -> Vec<Pid> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() != Some("Z") && fields.next() == Some(parent.to_string().as_str())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = pids.filter(is_child).collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(Pid::from_raw).collect()
}

fn runs(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // A process that is not reaped because its parent was killed has ended, too.
    !stat.is_empty() && !stat.contains(") Z ")
}

fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A demo that takes hours, and its members, some time after they have begun.
fn endless_demo(transport: &str) -> (Child, Vec<Pid>) {
    let mut command = squall(&format!("demo --calm --members 3 --transport {transport} --rounds 1000000000"));
    let mut demo = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    soon("three members", || children(demo.id()).len() == 3 || demo.try_wait().unwrap().is_some());
    std::thread::sleep(Duration::from_millis(700));
    let members = children(demo.id());
    assert_eq!(members.len(), 3, "all members still run");
    (demo, members)
}

fn end(demo: Child) -> (Option<i32>, String) {
    let output = demo.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_demo_agrees_on_every_transport() {
    for transport in ["shm", "tcp", "auto"] {
        let result = json(&format!("demo --calm --transport {transport} --rounds 3 --json"));
        assert_eq!(result["agree"], true, "{result}");
        assert_eq!((&result["members"], &result["messages"]), (&3.into(), &816.into()));
        assert_eq!(result["digests"].as_array().unwrap().len(), 3);
        assert!(result["latency_ns"]["p50"].as_u64() > Some(0), "{result}");
    }
}

#[test]
fn the_demo_says_so_to_people() {
    let output = output("demo --members 2 --rounds 1");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("All 2 logs are the same: 272 lines"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colour where there is no terminal");
}

/// The logs that are kept are the input, each line once, each sender's lines in their order.
#[test]
fn the_logs_hold_the_input() {
    let folder = Folder::new("logs");
    let input = folder.0.join("input.txt");
    let lines: Vec<String> = (0..5000).map(|number| format!("line {number} of the input")).collect();
    std::fs::write(&input, lines.join("\n")).unwrap();
    let logs = folder.0.join("logs");
    let arguments =
        format!("demo --calm --members 3 --input {} --keep {} --json", input.display(), logs.display());
    assert_eq!(json(&arguments)["messages"], 5000);

    let read = |rank: usize| std::fs::read_to_string(logs.join(format!("member-{rank}.log"))).unwrap();
    let log = read(0);
    assert!(log == read(1) && log == read(2), "all logs are the same");
    for sender in 0..3 {
        let prefix = format!("{sender}\t");
        let sent: Vec<_> = log.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected: Vec<_> = lines.iter().skip(sender).step_by(3).collect();
        assert_eq!(sent, expected, "the lines of sender {sender}");
    }
}

/// Two of three are gone: the third is no majority and stops; all of it is reported.
#[test]
fn killed_members_are_named() {
    for transport in ["shm", "tcp", "auto"] {
        let (demo, members) = endless_demo(transport);
        members[1..].iter().for_each(|member| kill_process(*member, Signal::KILL).unwrap());
        let (status, stderr) = end(demo);
        assert_eq!(status, Some(1), "{stderr}");
        for (rank, member) in members.iter().enumerate().skip(1) {
            let name = format!("member {rank} (pid {}) died: killed (signal 9)", member.as_raw_nonzero());
            assert!(stderr.contains(&name), "{transport}: {stderr}");
        }
        let words = format!("member 0 (pid {}) ended: ", members[0].as_raw_nonzero());
        assert!(stderr.contains(&words) && stderr.contains("members are gone"), "{transport}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert!(members.into_iter().all(|member| !runs(member)));
    }
}

/// One of three is killed at work: the others continue, deliver all that they send, and agree.
#[test]
fn the_others_go_on_without_a_killed_member() {
    for transport in ["shm", "tcp", "auto"] {
        let result = json(&format!("demo --kill --rounds 3000 --transport {transport} --json"));
        assert_eq!((&result["agree"], &result["died"]), (&true.into(), &serde_json::json!([2])), "{result}");
        assert_eq!(result["digests"].as_array().map(Vec::len), Some(2), "{result}");
        let (messages, all) = (result["messages"].as_u64().unwrap(), 3000 * 272);
        assert!(messages < all && messages >= all / 3 * 2, "{result}");
        assert!(result["crash_to_delivery_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{result}");
    }
}

/// One is killed and another joins while the text is replicated: all agree, and the view changes are reported.
#[test]
fn a_member_dies_and_another_joins() {
    let folder = Folder::new("trace");
    for transport in ["shm", "tcp"] {
        let trace = folder.0.join(format!("{transport}.json"));
        let result =
            json(&format!("demo --rounds 300 --transport {transport} --trace {} --json", trace.display()));
        assert_eq!((&result["agree"], &result["died"]), (&true.into(), &serde_json::json!([2])), "{result}");
        assert_eq!(result["joined"], 3, "{result}");
        let trace: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
        let names: Vec<&str> =
            trace.as_array().unwrap().iter().filter_map(|event| event["name"].as_str()).collect();
        assert!(names.contains(&"to view 1") && names.contains(&"to view 2"), "{names:?}");
    }
}

/// Members die, stop and come, and the accounts agree.
#[test]
fn chaos_loses_nothing() {
    for transport in ["shm", "tcp"] {
        let result = json(&format!("chaos --seconds 4 --members 3 --transport {transport} --seed 3 --json"));
        assert_eq!(result["agree"], true, "{result}");
        assert!(result["messages"].as_u64() > Some(0), "{result}");
    }
}

/// Scripts rely on these keys.
#[test]
fn view_changes_are_timed() {
    let result = json("bench view --rounds 2 --json");
    for key in ["crash_to_delivery_ms", "join_stall_ms", "start_to_delivery_ms"] {
        assert!(
            result[key]["p50"].as_f64() > Some(0.0) && result[key]["max"].as_f64() > Some(0.0),
            "{result}"
        );
    }
}

#[test]
fn an_interrupt_ends_all() {
    for signal in [Signal::INT, Signal::TERM] {
        let (demo, members) = endless_demo("shm");
        kill_process(Pid::from_child(&demo), signal).unwrap();
        let (status, stderr) = end(demo);
        assert_eq!(status, Some(130), "{stderr}");
        assert!(stderr.contains("interrupted; all members have ended"), "{stderr}");
        assert!(members.into_iter().all(|member| !runs(member)), "they are reaped before the command ends");
    }
}

/// No message can reach the members then; they notice by themselves.
#[test]
fn members_do_not_outlive_a_killed_parent() {
    let (mut demo, members) = endless_demo("tcp");
    demo.kill().unwrap();
    demo.wait().unwrap();
    soon("the end of all members", || members.iter().all(|member| !runs(*member)));
}

/// Scripts rely on these keys.
#[test]
fn the_benchmark_prints_its_keys() {
    for transport in ["shm", "tcp", "sim"] {
        let arguments = "--members 2 --senders all --size 100 --messages 500 --json";
        let result = json(&format!("bench multicast --transport {transport} {arguments}"));
        let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key} in {result}"));
        assert_eq!(["members", "senders", "size", "messages"].map(number), [2.0, 2.0, 100.0, 1000.0]);
        assert!(number("seconds") > 0.0);
        let (messages, bytes) = (number("messages_per_second"), number("bytes_per_second"));
        assert!(
            (messages * number("seconds") - 1000.0).abs() < 1.0 && (bytes / messages - 100.0).abs() < 0.01
        );
    }
}

#[test]
fn latency_is_measured_one_at_a_time() {
    for transport in ["shm", "tcp", "sim"] {
        let arguments = "--latency --senders one --messages 200 --json";
        let result = json(&format!("bench multicast --transport {transport} {arguments}"));
        let latency = ["p50", "p99", "p999", "max"].map(|key| result["latency_ns"][key].as_u64().unwrap());
        assert!(latency[0] > 0 && latency.is_sorted(), "{result}");
    }
}

/// Scripts rely on these keys. Each message counts once, however many members deliver it.
#[test]
fn messages_to_shards_are_measured_beside_one_subgroup() {
    for transport in ["shm", "tcp", "sim"] {
        let arguments = format!("--transport {transport} --messages 200 --latency --json");
        let result = json(&format!("bench genuine {arguments}"));
        assert_eq!(&result["messages"], 800, "{result}");
        for figures in [&result, &result["one_subgroup"]] {
            let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{key} in {result}"));
            assert!((number("messages_per_second") * number("seconds") - 800.0).abs() < 1.0, "{result}");
            assert!(figures["latency_ns"]["p50"].as_u64() > Some(0), "{result}");
        }
    }
}

/// The members of the shard that lives on deliver in the next view.
#[test]
fn deaths_of_leaders_are_timed() {
    let result = json("bench genuine --deaths 2 --window 4 --json");
    for key in ["death_to_delivery_ms", "other_shard_stall_ms", "other_shard_pause_before_ms"] {
        assert!(result[key]["p50"].as_f64() > Some(0.0), "{key}: {result}");
    }
}

/// Every switch works on its own, with every mode.
#[test]
fn every_optimisation_can_be_switched_off() {
    let switches = [
        "--no-batching",
        "--no-send-batching",
        "--no-receive-batching",
        "--no-delivery-batching",
        "--no-nulls",
    ];
    for (mode, switch) in ["atomic", "unordered", "raw"].iter().cycle().zip(switches) {
        let arguments = format!("--mode {mode} {switch} --members 2 --window 7 --messages 300 --json");
        assert_eq!(json(&format!("bench multicast {arguments}"))["messages"], 600, "{mode} {switch}");
    }
}

#[test]
fn the_table_is_measured() {
    for transport in ["shm", "tcp", "auto"] {
        let result = json(&format!("bench sst --transport {transport} --members 3 --rounds 300 --json"));
        assert_eq!((&result["members"], &result["rounds"]), (&3.into(), &300.into()));
        assert!(
            result["rounds_per_second"].as_f64() > Some(0.0)
                && result["latency_ns"]["p50"].as_u64() > Some(0)
        );
    }
}

#[test]
fn seeds_are_simulated_and_explained() {
    let result = json("simulate --scenario multicast --seeds 0..20 --json");
    assert!(result["faults"]["slow link"].as_u64() > Some(0), "{result}");
    let result_of_one = json("simulate --scenario sst --seeds 0..1 --json");
    assert!(result_of_one["missing"].is_array(), "{result_of_one}");
    assert_eq!((&result["seeds"], &result["failures"]), (&20.into(), &serde_json::json!([])));
    let scenarios = json("simulate --scenario list --json");
    assert!(
        scenarios.as_array().unwrap().iter().any(|scenario| scenario["name"] == "multicast"),
        "{scenarios}"
    );
    let explained = json("explain 3 --json");
    assert!(explained["violates"].is_null() && explained["lines"][0].is_string(), "{explained}");
    let explained = output("explain 3");
    assert!(explained.status.success());
    assert_eq!(explained.stdout, output("explain 3").stdout, "the same seed is the same run");
}

#[test]
fn what_cannot_be_done_is_reported() {
    let cases = [
        ("demo --members 0", 2, "0 is not in 1..=64"),
        ("demo --input /nonexistent/file", 1, "cannot read the input /nonexistent/file"),
        ("demo --transport rdma", 2, "[possible values: shm, tcp, auto, verbs]"),
        ("demo --transport verbs --at node=1", 2, "write netns=NAME, address=IP or device=NAME"),
        ("demo --transport shm --at netns=a", 1, "choose --transport tcp, auto or verbs"),
        ("bench stream --at device=a", 1, "choose --transport tcp or verbs"),
        ("bench stream --transport verbs --at netns=a", 1, "the sender runs here"),
        ("bench multicast --senders 3 --members 2", 1, "3 senders among 2 members: raise --members"),
        ("bench genuine --transport sim --deaths 1", 1, "choose another --transport"),
        ("bench genuine --replicas 1 --deaths 1", 1, "two shards of two are needed"),
        ("bench multicast --size 10kilo", 2, "write a number of bytes"),
        ("simulate --seeds 5", 2, "like 0..1000"),
        ("simulate --scenario none", 1, "there is no scenario `none`"),
        ("", 2, "Usage: squall [OPTIONS] <COMMAND>"),
    ];
    for (arguments, status, expected) in cases {
        let output = output(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments}: {stderr}");
        assert!(stderr.contains(expected), "{arguments}: {stderr}");
    }
}

/// Without libibverbs all else works, and a command that asks for RDMA says what to install.
#[test]
fn without_the_library_it_says_what_to_install() {
    let folder = Folder::new("no-verbs");
    // The loader finds this one first, which is no library.
    std::fs::write(folder.0.join("libibverbs.so.1"), "").unwrap();
    std::fs::write(folder.0.join("secret"), "sixteen bytes or more").unwrap();
    let secret = folder.0.join("secret");
    let copy = format!("cp {0} a: --secret-file {0}", secret.display());
    for command in ["demo", "bench multicast", "bench sst", "bench rdmc", "bench stream", &copy] {
        let mut program = squall(&format!("{command} --transport verbs"));
        let output = program.env("LD_LIBRARY_PATH", &folder.0).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {stderr}");
        assert!(stderr.contains("apt-get install libibverbs1 ibverbs-providers"), "{command}: {stderr}");
    }
    // The doctor reports that as a fault only if RDMA was asked for.
    for (arguments, status) in [("doctor", 0), ("doctor --device foo", 1), ("doctor --device foo --json", 1)]
    {
        let output = squall(arguments).env("LD_LIBRARY_PATH", &folder.0).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments}");
    }
    let mut program = squall("demo --members 2 --rounds 1 --transport tcp");
    assert!(program.env("LD_LIBRARY_PATH", &folder.0).output().unwrap().status.success());
}

/// The doctor at each member of a configuration, all on this machine.
#[test]
fn the_doctor_says_how_members_reach_each_other() {
    let folder = Folder::new("doctor");
    let port = reserve_port().unwrap();
    let start = |rank: usize| {
        let file = folder.0.join(format!("{rank}.toml"));
        let listen = format!("127.0.0.1:{}", if rank == 0 { port } else { 0 });
        let text = format!(
            "cluster = \"doctor\"\nsecret = \"at least sixteen bytes\"\nlisten = \"{listen}\"\n\
             contacts = [\"127.0.0.1:{port}\"]\nmembers = 2\n[subgroups.log]\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut program = squall("doctor --no-axioms --json -c");
        program.arg(file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let members = [start(0), start(1)];
    for (rank, member) in members.into_iter().enumerate() {
        let output = member.wait_with_output().unwrap();
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(result["peers"][0]["member"], 1 - rank, "{result}");
        assert_eq!(result["peers"][0]["way"], "shared memory", "{result}");
    }
}

/// A member that is started by hand ends at once.
#[test]
fn a_member_without_its_parent_ends() {
    let output = output("member --parent 1");
    assert_eq!(output.status.code(), Some(3));
    assert!(Path::new(env!("CARGO_BIN_EXE_squall")).exists());
}

/// As in `squall demo | head -1`.
#[test]
fn a_reader_that_has_gone_is_no_panic() {
    for arguments in ["explain 3", "demo --members 2 --rounds 1", "bench sst --rounds 10 --json"] {
        // Before the program begins, else it might be done first.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = squall(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), stderr.contains("panicked")),
            (Some(141), false),
            "{arguments}: {stderr}"
        );
    }
}
