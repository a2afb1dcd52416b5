//! Which files a host has already: the content decides, or, where the user prefers that, size and time alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use squall_harness::terminal::error_text;

use super::send::CopyObserver;
use super::source::{LocalFile, SourceEntry};
use super::target::CopyTarget;
use super::{CopyRequest, HeldContent};

/// Finds out which files each target has, and has it make space for the others. A file of the source that cannot be read is not sent:
/// its number is returned. Failures are reported and recorded.
pub(crate) fn compare(
    (sources, request): (&[SourceEntry], &CopyRequest),
    targets: &mut [CopyTarget],
    by_time: bool,
    observer: &mut dyn CopyObserver,
) -> BTreeSet<usize> {
    let files: Vec<&LocalFile> = sources.iter().filter_map(|source| source.file.as_ref()).collect();
    let asked: Vec<Vec<usize>> =
        targets.iter().map(|target| in_question(targets, target, files.len(), by_time)).collect();
    let to_read: BTreeSet<usize> = asked.iter().flatten().copied().collect();
    // All disks are read at once.
    let (answers, own) = std::thread::scope(|scope| {
        let read = || to_read.into_iter().map(|file| (file, files[file].digest())).collect();
        let own = scope.spawn(read);
        let answers = at_each(targets, &asked, |target, files| target.ask_digests(files));
        let own: BTreeMap<usize, Result<String>> = own.join().expect("a digest does not panic");
        (answers, own)
    });
    let mut unread = BTreeSet::new();
    for (file, digest) in &own {
        if let Err(error) = digest {
            unread.insert(*file);
            observer.on_unread(&files[*file].path, &error_text(error));
        }
    }
    let same = targets.iter().zip(&asked).zip(answers).map(|((target, asked), answers)| {
        let answers: BTreeMap<usize, Option<String>> = asked.iter().copied().zip(answers).collect();
        let is_same = |file: &usize| match answers.get(file) {
            Some(answer) => own[file].as_ref().ok().is_some_and(|own| Some(own) == answer.as_ref()),
            None => by_time && target.held.get(*file) == Some(&HeldContent::SameTime),
        };
        (0..files.len()).filter(is_same).collect::<Vec<usize>>()
    });
    let same: Vec<Vec<usize>> = same.collect();
    let sizes: Vec<u64> = files.iter().map(|file| file.bytes).collect();
    let failures = at_each(targets, &same, |target, same| target.make_space(request, &sizes, same));
    for (i, (target, failures)) in targets.iter_mut().zip(failures).enumerate() {
        for failure in failures {
            observer.on_failure(i, &target.name, &failure);
            target.failure.get_or_insert(failure);
        }
    }
    unread
}

/// Asks all targets at once; each has its own part of `parts`.
fn at_each<R: Send>(
    targets: &mut [CopyTarget],
    parts: &[Vec<usize>],
    ask: impl Fn(&mut CopyTarget, &[usize]) -> R + Sync,
) -> Vec<R> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let mut asking = Vec::new();
        for (target, part) in targets.iter_mut().zip(parts) {
            asking.push(scope.spawn(move || ask(target, part)));
        }
        asking.into_iter().map(|thread| thread.join().expect("to ask does not panic")).collect()
    })
}

/// The files whose digests are wanted of a target. By time these are only files that others lack: what they are sent by this one has to be
/// right.
fn in_question(targets: &[CopyTarget], target: &CopyTarget, files: usize, by_time: bool) -> Vec<usize> {
    if !target.is_left() {
        return Vec::new();
    }
    let others_lack = |file: usize| {
        targets.iter().any(|other| other.is_left() && other.held[file] != HeldContent::SameTime)
    };
    let is_in_question = |file: &usize| match (target.held[*file], by_time) {
        (HeldContent::Other, _) | (HeldContent::SameSize, true) => false,
        (HeldContent::SameSize | HeldContent::SameTime, false) => true,
        (HeldContent::SameTime, true) => others_lack(*file),
    };
    (0..files).filter(is_in_question).collect()
}
