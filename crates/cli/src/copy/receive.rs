//! A receiving host: answers one request, takes part in its session, and keeps the files.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, ensure};
use squall::bulk::{BLOCKS_MAX, BulkBuffer, BulkOptions, FileTarget, HeldBlocks, Session};
use squall_harness::terminal::error_text;

use super::digest::{ArrivingDigest, digest, digest_of};
use super::folder::{FilePlace, Folder, names};
use super::host::CopyHost;
use super::links::{self, session_config};
use super::parcel::{ParcelKind, kind};
use super::partial::{self, BlockList, PartialFile};
use super::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyConnection, CopyDigest, CopyEntry, CopyRequest, DigestVerdict,
    FileEntry, HeldContent, ParcelAnswer, SpaceAnswer, blocks,
};

/// One file, ready to be received. Nothing is held open: there may be many.
struct Slot {
    path: Vec<String>,
    mode: u32,
    entry: FileEntry,
    held: HeldContent,
    /// It is here, with the content of the source.
    is_same: bool,
}

/// What a request is about.
struct Prepared {
    /// For each entry; `None` for a folder.
    slots: Vec<Option<Slot>>,
    /// What could not be done.
    failures: Vec<String>,
}

/// A file that travels alone, while it does.
enum State {
    /// It is here already.
    There,
    /// It has arrived, and has this digest.
    Partial(PartialFile, String),
}

/// Serves one copy from its request to its end; returns the number of files received.
///
/// # Errors
/// If the copy fails; the other end has been informed, if it is still there.
pub(crate) fn serve(line: &CopyConnection, host: &CopyHost) -> Result<usize> {
    let folder = &host.folder;
    // The source may have to wait for its turn at other hosts.
    let request: CopyRequest = line.read()?;
    let ticket = host.links.expect(request.copy);
    let Prepared { mut slots, failures } = match prepare(folder, &request) {
        Ok(prepared) => prepared,
        Err(error) => {
            line.write(&CopyAnswer::Refused { message: error_text(&error) })?;
            return Err(error);
        }
    };
    let held = slots.iter().flatten().map(|slot| slot.held).collect();
    line.write(&CopyAnswer::Ready { held, digest: CopyDigest::Blake3 })?;
    answer_digests(line, folder, &slots)?;
    if let Err(error) = make_space(line, folder, &mut slots, failures) {
        line.write(&SpaceAnswer::Refused { message: error_text(&error) })?;
        return Err(error);
    }
    // Other hosts may take long to answer. Without a session there is nothing to send.
    let Some(begin) = line.read::<Option<CopyBegin>>()? else {
        release(folder, &slots, &BTreeSet::new());
        return Ok(0);
    };
    links::check(&begin)?;
    let links = links::join(line, &begin, (request.copy, &ticket), host)?;
    let config = session_config(begin.hosts.len() + 1, begin.transport, &host.verbs, &host.trust.secret);
    let options = BulkOptions { block_bytes: Some(BLOCK_BYTES), ..BulkOptions::default() };
    let mut session = Session::over(&config, &options, begin.rank, links)?;
    let received = receive_all(&mut session, folder, (&request, &slots), line);
    received.inspect_err(|error| {
        // The source sees a host that leaves, and here is why; it may be the source that has gone.
        let _ = line.write(&ParcelAnswer::Failed { message: error_text(error) });
    })
}

/// Makes the folders and looks at what is there.
fn prepare(folder: &Folder, request: &CopyRequest) -> Result<Prepared> {
    let target = names(&request.path)?;
    let into = request.into || target.is_empty() || folder.is_folder(&target);
    if into {
        folder.make(&target, 0o755)?;
    } else if let Some((_, above)) = target.split_last() {
        ensure!(folder.is_folder(above), "there is no folder {} here", above.join("/"));
    }
    let mut prepared = Prepared { slots: Vec::new(), failures: Vec::new() };
    for CopyEntry { path, mode, file } in &request.entries {
        // The source may be hostile: each name is checked like a path.
        ensure!(!path.is_empty(), "a file or folder has no name");
        for name in path {
            ensure!(names(name)? == [name.clone()], "`{name}` is not a name");
        }
        let path = if into { [&target[..], path].concat() } else { [&target[..], &path[1..]].concat() };
        let Some(entry) = file else {
            if !folder.is_folder(&path) {
                folder.make(&path, *mode)?;
            } else if let Err(error) = folder.set_mode(&path, *mode) {
                prepared.failures.push(error_text(&error));
            }
            prepared.slots.push(None);
            continue;
        };
        let bytes = entry.bytes;
        ensure!(blocks(bytes) <= BLOCKS_MAX, "a file of {bytes} bytes is more than can be copied at once");
        let place = folder.place(&path)?;
        let held = partial::same_by_look(&place, entry, *mode)?.unwrap_or(HeldContent::Other);
        prepared.slots.push(Some(Slot { path, mode: *mode, entry: *entry, held, is_same: false }));
    }
    Ok(prepared)
}

/// Sends the digests for which the source asks: of files that may be those of the source.
fn answer_digests(line: &CopyConnection, folder: &Folder, slots: &[Option<Slot>]) -> Result<()> {
    let (files, slots): (Vec<usize>, Vec<&Slot>) = (line.read()?, slots.iter().flatten().collect());
    let of = |file: usize| -> Result<String> {
        let slot = slots.get(file).context("there is no such file")?;
        digest(&folder.place(&slot.path)?.open()?.context("it has gone")?, slot.entry.bytes)
    };
    // A file that cannot be read is replaced.
    line.write(&files.into_iter().map(|file| of(file).ok()).collect::<Vec<_>>())
}

/// Gives the files that the source calls the same their permissions and times, and reserves the space of all that travel alone.
fn make_space(
    line: &CopyConnection,
    folder: &Folder,
    slots: &mut [Option<Slot>],
    mut failures: Vec<String>,
) -> Result<()> {
    let same: Vec<usize> = line.read()?;
    let mut same = same.into_iter().peekable();
    let mut held = Vec::new();
    for (file, slot) in slots.iter_mut().flatten().enumerate() {
        slot.is_same = same.next_if_eq(&file).is_some();
        let place = folder.place(&slot.path)?;
        if slot.is_same {
            let set = place
                .open()?
                .context("it has gone")
                .and_then(|there| partial::set_attributes(&place, &there, &slot.entry, slot.mode));
            failures.extend(set.err().as_ref().map(error_text));
        } else if kind(&[slot.entry.bytes]) == Some(ParcelKind::Alone) {
            let (_, blocks) = PartialFile::open(&place, &slot.entry)?;
            held.push((file, blocks.held.count()));
        }
    }
    ensure!(same.next().is_none(), "the source calls files the same that it has not named, or not in order");
    line.write(&SpaceAnswer::Ready { held, failures })
}

/// Receives the parcels that the source announces, until it ends.
fn receive_all(
    session: &mut Session,
    folder: &Folder,
    (request, slots): (&CopyRequest, &[Option<Slot>]),
    line: &CopyConnection,
) -> Result<usize> {
    let (mut received, mut memory, mut sent) = (0, session.buffer(0), BTreeSet::new());
    while let Some(parcel) = line.read::<Option<Vec<usize>>>()? {
        let kind = request
            .parcel_kind(&parcel)
            .context("the source sends files that it has not named, or not in this way")?;
        sent.extend(parcel.iter().copied());
        let parcel: Vec<&Slot> = parcel.iter().filter_map(|entry| slots[*entry].as_ref()).collect();
        let judgements = receive(session, &mut memory, folder, (&parcel, kind), line)?;
        received += judgements.iter().filter(|judgement| matches!(judgement, DigestVerdict::Good)).count();
        line.write(&ParcelAnswer::Judged(judgements))?;
    }
    release(folder, slots, &sent);
    Ok(received)
}

/// Gives the space back of files that the source has named and could not send, unless a part of them is here. `sent` has the entries of
/// the others.
fn release(folder: &Folder, slots: &[Option<Slot>], sent: &BTreeSet<usize>) {
    let slots = slots.iter().enumerate().filter(|(entry, _)| !sent.contains(entry));
    for slot in slots.filter_map(|(_, slot)| slot.as_ref()).filter(|slot| !slot.is_same) {
        let is_alone = kind(&[slot.entry.bytes]) == Some(ParcelKind::Alone);
        let Ok(place) = folder.place(&slot.path) else { continue };
        if is_alone
            && let Ok((partial, blocks)) = PartialFile::open(&place, &slot.entry)
            && blocks.held.count() == 0
        {
            partial.forget(&place);
        }
    }
}

/// Receives a parcel and the digests of its files, and compares each. A file without a digest could not be read by the source.
fn receive(
    session: &mut Session,
    memory: &mut BulkBuffer,
    folder: &Folder,
    (parcel, kind): (&[&Slot], ParcelKind),
    line: &CopyConnection,
) -> Result<Vec<DigestVerdict>> {
    let next = session.next_object()?;
    let bytes: u64 = parcel.iter().map(|slot| slot.entry.bytes).sum();
    ensure!(next.bytes == bytes, "the source has changed what it sends meanwhile");
    let judged = |outcome: Result<()>| match outcome {
        Ok(()) => DigestVerdict::Good,
        Err(error) => DigestVerdict::Bad { message: error_text(&error) },
    };
    match kind {
        ParcelKind::Alone => {
            let place = folder.place(&parcel[0].path)?;
            let state = receive_alone(session, &place, parcel[0])?;
            let right = read_digests(line, parcel.len())?;
            Ok(vec![judged(finish(&place, parcel[0], &state, right[0].as_deref()))])
        }
        ParcelKind::Together(_) => {
            session.receive_buffer(memory)?;
            let right = read_digests(line, parcel.len())?;
            let mut rest = &memory[..];
            let keep_next = |(slot, right): (&&Slot, &Option<String>)| {
                let (content, behind) =
                    rest.split_at(usize::try_from(slot.entry.bytes).expect("a small file"));
                rest = behind;
                judged(keep(folder, slot, content, right.as_deref()))
            };
            Ok(parcel.iter().zip(&right).map(keep_next).collect())
        }
    }
}

fn read_digests(line: &CopyConnection, files: usize) -> Result<Vec<Option<String>>> {
    let right: Vec<Option<String>> = line.read()?;
    ensure!(right.len() == files, "{} digests of {files} files: run the same release there", right.len());
    Ok(right)
}

fn receive_alone(session: &mut Session, place: &FilePlace, slot: &Slot) -> Result<State> {
    let entry = &slot.entry;
    if let Some(file) = place.open()?
        && slot.is_same
        && file.metadata()?.len() == entry.bytes
    {
        // This host lacks nothing, but may be a source for the others.
        let held = HeldBlocks::all(blocks(entry.bytes));
        session.receive_file(FileTarget { file: &file, held, on_block: Box::new(|_| ()) })?;
        return Ok(State::There);
    }
    let (partial, BlockList { list, held }) = PartialFile::open(place, entry)?;
    let arriving = ArrivingDigest::start(partial.file.try_clone()?, entry.bytes, held.clone())?;
    let arrivals = arriving.arrivals();
    let on_block = Box::new(move |block| {
        partial::note(&list, block);
        arrivals.note(block);
    });
    let received = session.receive_file(FileTarget { file: &partial.file, held, on_block });
    received.with_context(|| format!("{} was not received", place.path.display()))?;
    let found = arriving.finish()?;
    Ok(State::Partial(partial, found))
}

/// Compares the digest of a file that has travelled alone, and gives the file its name.
fn finish(place: &FilePlace, slot: &Slot, state: &State, right: Option<&str>) -> Result<()> {
    let State::Partial(partial, found) = state else { return Ok(()) };
    if right != Some(found) {
        partial.forget(place);
        return Err(not_right(place, right));
    }
    partial.finish(place, &slot.entry, slot.mode)
}

/// Compares the digest of a small file, and writes the file.
fn keep(folder: &Folder, slot: &Slot, content: &[u8], right: Option<&str>) -> Result<()> {
    if slot.is_same {
        return Ok(());
    }
    let place = folder.place(&slot.path)?;
    if right != Some(&digest_of(content)) {
        return Err(not_right(&place, right));
    }
    PartialFile::write(&place, content, &slot.entry, slot.mode)
}

fn not_right(place: &FilePlace, right: Option<&str>) -> anyhow::Error {
    let path = place.path.display();
    match right {
        Some(_) => anyhow!("{path} arrived with another digest, since it changed meanwhile: copy it again"),
        None => anyhow!("{path} was not kept: the source could not read it"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::CopyToken;
    use super::*;

    /// Names as a careless or hostile source may send them.
    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            Just("..".into()),
            Just(".".into()),
            Just("/".into()),
            Just("a/b".into()),
            Just("a\0b".into()),
            Just("x".repeat(300)),
            "[ab]",
            ".{0,5}",
        ]
    }

    fn entry() -> impl Strategy<Value = CopyEntry> {
        let bytes = prop_oneof![0..10_000_u64, Just(u64::MAX), Just(BLOCKS_MAX * BLOCK_BYTES), any::<u64>()];
        let file = proptest::option::of((bytes, any::<i128>()));
        (proptest::collection::vec(name(), 0..3), any::<u32>(), file).prop_map(|(path, mode, file)| {
            CopyEntry { path, mode, file: file.map(|(bytes, modified_ns)| FileEntry { bytes, modified_ns }) }
        })
    }

    fn request() -> impl Strategy<Value = CopyRequest> {
        let path = prop_oneof![Just(String::new()), Just("../../out".into()), "[a/.]{0,4}", ".{0,6}"];
        let entries = proptest::collection::vec(entry(), 0..4);
        (path, any::<bool>(), entries).prop_map(|(path, into, entries)| CopyRequest {
            copy: CopyToken(0),
            path,
            into,
            entries,
            digest: CopyDigest::Blake3,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// The host answers any request: it continues, and writes nowhere but in its folder.
        #[test]
        fn no_request_does_harm(request in request()) {
            let scratch = std::env::temp_dir().join(format!("squall-request-{}", std::process::id()));
            std::fs::create_dir_all(scratch.join("served")).unwrap();
            let folder = Folder::open(&scratch.join("served")).unwrap();
            if let Ok(Prepared { slots, .. }) = prepare(&folder, &request) {
                prop_assert_eq!(slots.len(), request.entries.len());
                prop_assert_eq!(slots.iter().flatten().count(), request.files());
            }
            let here: Vec<_> = std::fs::read_dir(&scratch).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            prop_assert_eq!(here, ["served"]);
            std::fs::remove_dir_all(scratch).unwrap();
        }
    }

    #[test]
    fn an_answer_about_other_files_is_refused() {
        let file = Some(FileEntry { bytes: 3 * BLOCK_BYTES, modified_ns: 0 });
        let entry = |file| CopyEntry { path: vec!["a".into()], mode: 0, file };
        let request = CopyRequest {
            copy: CopyToken(0),
            path: String::new(),
            into: true,
            entries: vec![entry(None), entry(file)],
            digest: CopyDigest::Blake3,
        };
        assert!(request.fits(&[(0, 3)]) && request.fits(&[(0, 0)]) && request.fits(&[]));
        assert!(!request.fits(&[(0, 4)]) && !request.fits(&[(1, 0)]));
    }
}
