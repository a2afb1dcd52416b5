//! Copies between hosts that are unplugged, and of files that are cut.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use squall_harness::lab::{BitRate, Lab, LabPlan, LinkConditions, outside};

use super::programs::address;
use super::{Folder, Running, SQUALL, await_that, build};

/// Below what the kernel needs to give a connection up by itself, and above the default silence on a busy machine.
const SOON_ENOUGH: Duration = Duration::from_secs(45);
const BYTES: usize = 100 << 20;
/// A file that travels alone, after the other one.
const SECOND_BYTES: usize = 2 << 20;

/// Hosts that run `squall serve`, and a large file.
struct LargeCopy {
    lab: Lab,
    folder: Folder,
    _hosts: Vec<Running>,
}

impl LargeCopy {
    /// The links to the hosts carry some megabytes a second, so a copy takes a while.
    fn new(name: &str, hosts: usize) -> Self {
        let lab = build(&LabPlan { has_switch: true, ..LabPlan::new(hosts) });
        let slow = LinkConditions { rate: BitRate(100_000_000), ..LinkConditions::default() };
        lab.set(None, None, slow).unwrap();
        lab.set(Some(outside(hosts)), None, slow).unwrap();
        let folder = Folder::new(name);
        std::fs::write(folder.0.join("secret"), "at least sixteen bytes").unwrap();
        std::fs::write(folder.0.join("image"), Self::content()).unwrap();
        std::fs::write(folder.0.join("second"), vec![b's'; SECOND_BYTES]).unwrap();
        let serve = |host: usize| {
            let own = folder.0.join(format!("h{host}"));
            std::fs::create_dir(&own).unwrap();
            let mut serve = lab.command_on(host, SQUALL);
            serve.arg("serve").arg("--folder").arg(own).arg("--secret-file").arg(folder.0.join("secret"));
            serve.stdout(Stdio::null()).stderr(Stdio::null());
            let running = Running::start(serve);
            let listens = ["-c", "ss -Hltn 'sport = :7401' | grep -q ."];
            await_that("the host listens", || {
                lab.command_on(host, "sh").args(listens).status().unwrap().success()
            });
            running
        };
        let running = (0..hosts).map(serve).collect();
        Self { lab, folder, _hosts: running }
    }

    fn content() -> Vec<u8> {
        (0..BYTES as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Copies files to these hosts, by a command that runs beside them or on one of them; its output goes to a file.
    fn start(&self, mut command: Command, files: &[&str], hosts: &[usize]) -> (Running, PathBuf) {
        let said = self.folder.0.join(format!("{}.said", files.join("-")));
        command.arg("cp").args(files.iter().map(|file| self.folder.0.join(file)));
        command.args(hosts.iter().map(|host| format!("{}:/", address(&self.lab, *host))));
        command.arg("--secret-file").arg(self.folder.0.join("secret"));
        let output = File::create(&said).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        (Running::start(command), said)
    }

    fn await_beginning(&self, host: usize) {
        let list = self.folder.0.join(format!("h{host}/.image.squall-held"));
        await_that("blocks arrive", || {
            std::fs::read(&list).is_ok_and(|list| list.iter().skip(48).any(|mark| *mark == 1))
        });
    }

    fn unplug(&self, host: usize) {
        let cut = LinkConditions { is_cut: true, ..LinkConditions::default() };
        let outside = Some(outside(self.lab.hosts().len()));
        for other in [None, outside] {
            self.lab.set(Some(host), other, cut).unwrap();
            self.lab.set(other, Some(host), cut).unwrap();
        }
    }

    fn has_image(&self, host: usize) -> bool {
        std::fs::read(self.folder.0.join(format!("h{host}/image"))).unwrap() == Self::content()
    }
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn an_unplugged_host_is_left_out_of_a_copy() {
    let trial = LargeCopy::new("unplugged", 3);
    let (mut copy, said) = trial.start(trial.lab.command_outside(SQUALL), &["image"], &[0, 1, 2]);
    trial.await_beginning(1);
    trial.unplug(1);
    let begun = Instant::now();
    let status = copy.0.wait().unwrap();
    let said = std::fs::read_to_string(said).unwrap();
    assert!(begun.elapsed() < SOON_ENOUGH, "{:?}: {said}", begun.elapsed());
    assert_eq!(status.code(), Some(1), "{said}");
    let lost = format!("{}: the host is lost", address(&trial.lab, 1));
    assert!(said.contains(&lost) && said.contains("at 2 of 3 hosts"), "{said}");
    assert!(trial.has_image(0) && trial.has_image(2));
}

#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn an_unplugged_source_frees_the_turn() {
    let trial = LargeCopy::new("unplugged-source", 2);
    let (_copy, _) = trial.start(trial.lab.command_on(1, SQUALL), &["image"], &[0]);
    trial.await_beginning(0);
    trial.unplug(1);
    let begun = Instant::now();
    let (mut second, said) = trial.start(trial.lab.command_outside(SQUALL), &["second"], &[0]);
    let status = second.0.wait().unwrap();
    let said = std::fs::read_to_string(said).unwrap();
    assert!(status.success() && said.contains("waits for the copy from"), "{said}");
    assert!(begun.elapsed() < SOON_ENOUGH, "{:?}: {said}", begun.elapsed());
    assert!(std::fs::read(trial.folder.0.join("h0/second")).unwrap() == vec![b's'; SECOND_BYTES]);
}

/// Between hosts, where streams are encrypted, so the file is read by the process.
#[test]
#[ignore = "needs root, or user namespaces: .ci/run hosts"]
fn a_source_that_is_cut_costs_itself_only() {
    let trial = LargeCopy::new("cut", 2);
    let (mut copy, said) = trial.start(trial.lab.command_outside(SQUALL), &["image", "second"], &[0, 1]);
    trial.await_beginning(0);
    File::options().write(true).open(trial.folder.0.join("image")).unwrap().set_len(1 << 20).unwrap();
    let status = copy.0.wait().unwrap();
    let said = std::fs::read_to_string(said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("image"), "{said}");
    for host in 0..2 {
        let own = trial.folder.0.join(format!("h{host}"));
        assert!(std::fs::read(own.join("second")).unwrap() == vec![b's'; SECOND_BYTES], "{said}");
        assert!(!own.join("image").exists(), "half of a file has its name");
    }
}
