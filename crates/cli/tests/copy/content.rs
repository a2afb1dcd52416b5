//! What is copied: the content decides, and a file that cannot be copied costs itself only.

use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::{Place, await_blocks, content, end};

fn set_time(path: &Path, time: SystemTime) {
    std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The same sizes and times with other content, small and large, at all hosts or at one of them.
#[test]
fn other_content_of_the_same_size_and_time_is_copied() {
    let place = Place::new("content");
    let source = place.root.join("site");
    std::fs::create_dir(&source).unwrap();
    let files = [("small", 100), ("large", 5 << 20)];
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let write = |seed: u64| {
        for (name, bytes) in files {
            std::fs::write(source.join(name), content(seed, bytes)).unwrap();
            set_time(&source.join(name), time);
        }
    };
    let hosts = [place.serve(61), place.serve(62)];
    let targets = hosts.each_ref().map(|host| format!("{}:/", host.address));
    let assert_copied = |seed: u64| {
        for (host, (name, bytes)) in hosts.iter().flat_map(|host| files.map(|file| (host, file))) {
            let copy = host.folder.join("site").join(name);
            assert!(std::fs::read(&copy).unwrap() == content(seed, bytes), "{name} at {}", host.address);
            assert_eq!(copy.metadata().unwrap().modified().unwrap(), time);
        }
    };
    write(1);
    assert_eq!(end(place.cp(&[&source], &targets)).0, 0);
    write(2);
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    assert_copied(2);
    // At one host alone, which was changed by hand.
    for (name, bytes) in files {
        let copy = hosts[1].folder.join("site").join(name);
        std::fs::write(&copy, content(3, bytes)).unwrap();
        set_time(&copy, time);
    }
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
    assert_copied(2);
    // The same content with another time: nothing is sent, and the time is carried over.
    let inode = || hosts[0].folder.join("site/large").metadata().unwrap().ino();
    let before = inode();
    set_time(&hosts[0].folder.join("site/large"), SystemTime::now());
    assert_eq!(end(place.cp(&[&source], &targets)).0, 0);
    assert_copied(2);
    assert_eq!(inode(), before, "it was replaced");
}

/// By size and time alone, where the user says so; a host that lacks a file gets the right one.
#[test]
fn by_time_size_and_time_decide() {
    let place = Place::new("by-time");
    let source = place.root.join("file");
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let hosts = [place.serve(63), place.serve(64)];
    let targets = hosts.each_ref().map(|host| format!("{}:file", host.address));
    let copy = |seed: u64| {
        std::fs::write(&source, content(seed, 3 << 20)).unwrap();
        set_time(&source, time);
        let mut command = place.command("cp");
        let output = command.arg("--by-time").arg(&source).args(&targets).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let is_at = |host: usize, seed: u64| {
        std::fs::read(hosts[host].folder.join("file")).unwrap() == content(seed, 3 << 20)
    };
    copy(1);
    copy(2);
    assert!(is_at(0, 1) && is_at(1, 1), "the time has not changed");
    std::fs::remove_file(hosts[1].folder.join("file")).unwrap();
    copy(2);
    assert!(is_at(0, 2) && is_at(1, 2), "where any lacks it, all have the right one");
}

/// Permissions of files and folders are carried over, also if nothing else has changed.
#[test]
fn modes_of_unchanged_files_are_carried_over() {
    let place = Place::new("chmod");
    let source = place.root.join("site");
    std::fs::create_dir(&source).unwrap();
    for (name, bytes) in [("small", 10), ("large", 3 << 20)] {
        std::fs::write(source.join(name), content(1, bytes)).unwrap();
    }
    let host = place.serve(65);
    for (file, folder) in [(0o644, 0o755), (0o600, 0o700), (0o640, 0o750)] {
        for name in ["small", "large"] {
            set_mode(&source.join(name), file);
        }
        set_mode(&source, folder);
        let (status, text) = end(place.cp(&[&source], &["127.0.0.65:/".into()]));
        assert_eq!(status, 0, "{text}");
        let mode = |name: &str| host.folder.join("site").join(name).metadata().unwrap().mode() & 0o7777;
        assert_eq!(["small", "large", ""].map(mode), [file, file, folder]);
    }
}

/// What a user has put beside is not eaten, two sources of one name are an error, and files of the kernel arrive whole.
#[test]
fn files_of_others_and_of_the_kernel() {
    let place = Place::new("others");
    let source = place.root.join("site");
    for folder in ["a", "b"] {
        std::fs::create_dir_all(source.join(folder)).unwrap();
        std::fs::write(source.join(folder).join("big"), content(1, 10)).unwrap();
    }
    let host = place.serve(66);
    let target = ["127.0.0.66:/".to_owned()];
    let [a, b] = ["a/big", "b/big"].map(|path| source.join(path));
    let (status, text) = end(place.cp(&[&a, &b], &target));
    assert!(status == 1 && text.contains("would both become big"), "{text}");
    assert_eq!(std::fs::read_dir(&host.folder).unwrap().count(), 0, "nothing is sent");

    let own = host.folder.join(".large.squall-partial");
    std::fs::write(&own, "mine").unwrap();
    let large = place.root.join("large");
    std::fs::write(&large, content(2, 3 << 20)).unwrap();
    let kernel = Path::new("/proc/version");
    let (status, text) = end(place.cp(&[&large, kernel], &target));
    assert_eq!(status, 0, "{text}");
    assert_eq!(std::fs::read(&own).unwrap(), b"mine");
    assert!(std::fs::read(host.folder.join("large")).unwrap() == content(2, 3 << 20));
    assert_eq!(std::fs::read(host.folder.join("version")).unwrap(), std::fs::read(kernel).unwrap());
    // Copied as files of their own, which have such names.
    std::fs::write(source.join("file"), "1").unwrap();
    std::fs::write(source.join(".file.squall-partial"), "2").unwrap();
    for _ in 0..2 {
        let (status, text) = end(place.cp(&[&source], &target));
        assert_eq!(status, 0, "{text}");
        let copied = ["file", ".file.squall-partial"].map(|name| host.folder.join("site").join(name));
        assert_eq!(copied.map(|path| std::fs::read(path).unwrap()), [b"1", b"2"]);
    }
}

/// A program that runs, and a file that may not be written, are replaced and not written.
#[test]
fn a_running_program_is_replaced() {
    let place = Place::new("running");
    let host = place.serve(67);
    let target = host.folder.join("program");
    std::fs::copy("/bin/sleep", &target).unwrap();
    let mut running = Command::new(&target).arg("60").spawn().unwrap();
    let source = place.root.join("program");
    std::fs::copy("/bin/sleep", &source).unwrap();
    for bytes in [None, Some(5_000), Some(3 << 20)] {
        if let Some(bytes) = bytes {
            std::fs::write(&source, content(1, bytes)).unwrap();
        }
        let (status, text) = end(place.cp(&[&source], &["127.0.0.67:program".into()]));
        assert_eq!(status, 0, "{text}");
        assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap());
        set_mode(&target, 0o400);
    }
    assert!(running.try_wait().unwrap().is_none());
    running.kill().unwrap();
    running.wait().unwrap();
}

/// A file that is not what it seems costs itself only, whether it travels alone or with others.
#[test]
fn a_file_that_cannot_be_read_costs_itself_only() {
    let place = Place::new("unread");
    let source = place.root.join("site");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("a"), content(1, 10)).unwrap();
    // It has fewer bytes than the system states.
    std::os::unix::fs::symlink("/sys/kernel/mm/transparent_hugepage/enabled", source.join("b")).unwrap();
    std::fs::write(source.join("c"), content(2, 3 << 20)).unwrap();
    let host = place.serve(68);
    let mut command = place.command("cp");
    let output = command.arg(&source).args(["127.0.0.68:/", "--json"]).output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &result["files"]), (Some(1), &2.into()), "{result}");
    assert!(result["hosts"][0]["error"].is_null(), "{result}");
    let unread = &result["unread"][0];
    assert!(unread["path"].as_str().unwrap().ends_with("site/b"), "{result}");
    assert!(unread["error"].as_str().unwrap().contains("cannot read"), "{result}");
    let copy = host.folder.join("site");
    assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 2);
    assert!(std::fs::read(copy.join("c")).unwrap() == content(2, 3 << 20));
}

/// A source that becomes shorter while it is copied costs that file: the others arrive, and nothing dies.
#[test]
fn a_file_that_is_cut_costs_itself_only() {
    let place = Place::new("cut");
    let source = place.root.join("site");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("a"), content(1, 200 << 20)).unwrap();
    std::fs::write(source.join("b"), content(2, 3 << 20)).unwrap();
    let host = place.serve(69);
    let copy = place.cp(&[&source], &["127.0.0.69:/".into()]);
    await_blocks(&host.folder.join("site/.a.squall-held"), 1);
    std::fs::File::options().write(true).open(source.join("a")).unwrap().set_len(1 << 20).unwrap();
    let (status, text) = end(copy);
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("site/a") && text.contains("1 of 1 host") || text.contains("another digest"),
        "{text}"
    );
    assert!(std::fs::read(host.folder.join("site/b")).unwrap() == content(2, 3 << 20));
    assert!(!host.folder.join("site/a").exists(), "half of a file has its name");
    let (status, text) = end(place.cp(&[&source], &["127.0.0.69:/".into()]));
    assert_eq!(status, 0, "{text}");
    assert_eq!(std::fs::read_dir(host.folder.join("site")).unwrap().count(), 2, "nothing is left beside");
}

/// A file with holes has the right content; a host whose limit of the size of files it exceeds says so, and lives.
#[test]
fn a_file_that_is_too_large_for_the_limit_is_refused() {
    let place = Place::new("limit");
    let source = place.root.join("sparse");
    let file = std::fs::File::create(&source).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(b"end", (4 << 20) - 3).unwrap();
    let good = place.serve(70);
    let _limited = place.serve_by(71, |serve| {
        let mut shell = Command::new("sh");
        // Units of 512 or 1024 bytes.
        shell.args(["-c", "ulimit -f 2048 && exec \"$@\"", "sh"]);
        shell.arg(serve.get_program()).args(serve.get_args());
        shell
    });
    let targets = ["127.0.0.70:f", "127.0.0.71:f"].map(String::from);
    let (status, text) = end(place.cp(&[&source], &targets));
    assert!(status == 1 && text.contains("127.0.0.71: no space for the 4194304 bytes"), "{text}");
    assert!(text.contains("File too large"), "{text}");
    assert!(std::fs::read(good.folder.join("f")).unwrap() == std::fs::read(&source).unwrap());
    std::fs::write(&source, "small").unwrap();
    let (status, text) = end(place.cp(&[&source], &targets));
    assert_eq!(status, 0, "{text}");
}
