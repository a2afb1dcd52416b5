//! A receiving host: answers one request, takes part in its session, and keeps the files.

use std::fs::File;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use squall::bulk::{BLOCKS_MAX, BulkBuffer, BulkOptions, FileTarget, HeldBlocks, Session};

use super::digest::{ArrivingDigest, digest, digest_of};
use super::folder::{FilePlace, Folder, names};
use super::host::CopyHost;
use super::links::{self, session_config};
use super::parcel::{ParcelKind, kind};
use super::partial::{self, PartialFile};
use super::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyConnection, CopyDigest, CopyEntry, CopyRequest, DigestVerdict,
    FileEntry, blocks,
};

/// One file, ready to be received. Nothing is held open: there may be many.
struct Slot {
    path: Vec<String>,
    mode: u32,
    entry: FileEntry,
    /// The number of blocks that are here already.
    held: u64,
}

/// A file that travels alone, while it does.
enum State {
    /// It is here already.
    There(File),
    /// It has arrived, and has this digest.
    Partial(PartialFile, String),
}

/// Serves one copy from its request to its end; returns the number of files received.
///
/// # Errors
/// If the copy fails; the other end has been informed, if it is still there.
pub(crate) fn serve(line: &mut CopyConnection, host: &CopyHost) -> Result<usize> {
    let CopyHost { folder, secret, verbs, .. } = host;
    // The source may have to wait for its turn at other hosts.
    let request: CopyRequest = line.read(Some(BEGIN_PATIENCE))?;
    let ticket = host.links.expect(request.copy);
    let slots = match prepare(folder, &request) {
        Ok(slots) => slots,
        Err(error) => {
            line.write(&CopyAnswer::Refused { message: format!("{error:#}") })?;
            return Err(error);
        }
    };
    let held = slots.iter().flatten().map(|slot| slot.held).collect();
    line.write(&CopyAnswer::Ready { held, digest: CopyDigest::Blake3 })?;
    // Other hosts may take long to answer. Without a session there is nothing to send.
    let Some(begin) = line.read::<Option<CopyBegin>>(Some(BEGIN_PATIENCE))? else { return Ok(0) };
    links::check(&begin)?;
    let links = links::join(line, &begin, (request.copy, &ticket), secret)?;
    let config = session_config(begin.hosts.len() + 1, begin.transport, verbs, secret);
    let options = BulkOptions { block_bytes: Some(BLOCK_BYTES), ..BulkOptions::default() };
    let mut session = Session::over(&config, &options, begin.rank, links)?;
    let (mut received, mut memory) = (0, session.buffer(0));
    for parcel in &begin.send {
        let kind = request
            .parcel_kind(parcel)
            .context("the source sends files that it has not named, or not in this way")?;
        let parcel: Vec<&Slot> = parcel.iter().filter_map(|entry| slots[*entry].as_ref()).collect();
        let judgements = receive(&mut session, &mut memory, folder, (&parcel, kind), line)?;
        received += judgements.iter().filter(|judgement| matches!(judgement, DigestVerdict::Good)).count();
        line.write(&judgements)?;
    }
    Ok(received)
}

/// Makes the folders and reserves the space of all files that travel alone.
fn prepare(folder: &Folder, request: &CopyRequest) -> Result<Vec<Option<Slot>>> {
    let target = names(&request.path)?;
    let into = request.into || target.is_empty() || folder.is_folder(&target);
    if into {
        folder.make(&target, 0o755)?;
    } else if let Some((_, above)) = target.split_last() {
        ensure!(folder.is_folder(above), "there is no folder {} here", above.join("/"));
    }
    let mut slots = Vec::new();
    for CopyEntry { path, mode, file } in &request.entries {
        // The source may be hostile: each name is checked like a path.
        ensure!(!path.is_empty(), "a file or folder has no name");
        for name in path {
            ensure!(names(name)? == [name.clone()], "`{name}` is not a name");
        }
        let path = if into { [&target[..], path].concat() } else { [&target[..], &path[1..]].concat() };
        let Some(entry) = file else {
            folder.make(&path, *mode)?;
            slots.push(None);
            continue;
        };
        let bytes = entry.bytes;
        ensure!(blocks(bytes) <= BLOCKS_MAX, "a file of {bytes} bytes is more than can be copied at once");
        let (place, all) = (folder.place(&path)?, blocks(bytes));
        let held = if partial::is_there(&place, entry)? {
            all
        } else if kind(&[bytes]) == Some(ParcelKind::Alone) {
            // One block less than all of a file that is whole but was never compared, so that it is compared and gets its
            // name.
            PartialFile::open(&place, entry)?.held.count().min(all.saturating_sub(1))
        } else {
            0
        };
        slots.push(Some(Slot { path, mode: *mode, entry: *entry, held }));
    }
    Ok(slots)
}

/// Receives a parcel and the digests of its files, and compares each.
fn receive(
    session: &mut Session,
    memory: &mut BulkBuffer,
    folder: &Folder,
    (parcel, kind): (&[&Slot], ParcelKind),
    line: &mut CopyConnection,
) -> Result<Vec<DigestVerdict>> {
    let next = session.next_object()?;
    let bytes: u64 = parcel.iter().map(|slot| slot.entry.bytes).sum();
    ensure!(next.bytes == bytes, "the source has changed what it sends meanwhile");
    let judged = |outcome: Result<()>| match outcome {
        Ok(()) => DigestVerdict::Good,
        Err(error) => DigestVerdict::Bad { message: format!("{error:#}") },
    };
    match kind {
        ParcelKind::Alone => {
            let place = folder.place(&parcel[0].path)?;
            let state = receive_alone(session, &place, &parcel[0].entry)?;
            let right = read_digests(line, parcel.len())?;
            Ok(vec![judged(finish(&place, parcel[0], &state, &right[0]))])
        }
        ParcelKind::Together(_) => {
            session.receive_buffer(memory)?;
            let right = read_digests(line, parcel.len())?;
            let mut rest = &memory[..];
            let keep_next = |(slot, right): (&&Slot, &String)| {
                let (content, behind) =
                    rest.split_at(usize::try_from(slot.entry.bytes).expect("a small file"));
                rest = behind;
                judged(keep(folder, slot, content, right))
            };
            Ok(parcel.iter().zip(&right).map(keep_next).collect())
        }
    }
}

fn read_digests(line: &mut CopyConnection, files: usize) -> Result<Vec<String>> {
    let right: Vec<String> = line.read(Some(PATIENCE))?;
    ensure!(right.len() == files, "{} digests of {files} files: run the same release there", right.len());
    Ok(right)
}

fn receive_alone(session: &mut Session, place: &FilePlace, entry: &FileEntry) -> Result<State> {
    if let Some(file) = place.open()?
        && partial::is_there(place, entry)?
    {
        // This host lacks nothing, but may be a source for the others.
        let held = HeldBlocks::all(blocks(entry.bytes));
        session.receive_file(FileTarget { file: &file, held, on_block: Box::new(|_| ()) })?;
        return Ok(State::There(file));
    }
    let partial = PartialFile::open(place, entry)?;
    let (list, held) = (partial.list.try_clone()?, partial.held.clone());
    let arriving = ArrivingDigest::start(partial.file.try_clone()?, entry.bytes, held.clone())?;
    let arrivals = arriving.arrivals();
    let on_block = Box::new(move |block| {
        partial::note(&list, block);
        arrivals.note(block);
    });
    session.receive_file(FileTarget { file: &partial.file, held, on_block })?;
    let found = arriving.finish()?;
    Ok(State::Partial(partial, found))
}

/// Compares the digest of a file that has travelled alone, and gives the file its name.
fn finish(place: &FilePlace, slot: &Slot, state: &State, right: &str) -> Result<()> {
    match state {
        State::There(file) => compare(place, file, slot, right),
        State::Partial(partial, found) => {
            if found != right {
                PartialFile::forget(place);
                anyhow::bail!(
                    "{} arrived with another digest, and was removed: copy it again",
                    place.path.display()
                );
            }
            PartialFile::finish(place, &partial.file, &slot.entry, slot.mode)
        }
    }
}

/// Compares the digest of a small file, and writes the file.
fn keep(folder: &Folder, slot: &Slot, content: &[u8], right: &str) -> Result<()> {
    let place = folder.place(&slot.path)?;
    if let Some(there) = place.open()?
        && partial::is_there(&place, &slot.entry)?
    {
        return compare(&place, &there, slot, right);
    }
    ensure!(
        digest_of(content) == right,
        "{} arrived with another digest: copy it again",
        place.path.display()
    );
    PartialFile::write(&place, content, &slot.entry, slot.mode)
}

/// Checks that a file that was here is the one that is copied.
fn compare(place: &FilePlace, file: &File, slot: &Slot, right: &str) -> Result<()> {
    let found = digest(file, slot.entry.bytes)?;
    let path = place.path.display();
    ensure!(found == right, "{path} has the same size and time but another content: remove it there");
    Ok(())
}

/// For what the source does at once, except for the digest of a large file.
const PATIENCE: Duration = Duration::from_secs(600);
/// For the preparation of other hosts, and for copies before this one there.
const BEGIN_PATIENCE: Duration = Duration::from_secs(3600);

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
            if let Ok(slots) = prepare(&folder, &request) {
                prop_assert_eq!(slots.len(), request.entries.len());
                let held: Vec<u64> = slots.iter().flatten().map(|slot| slot.held).collect();
                prop_assert!(request.fits(&held));
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
        assert!(request.fits(&[3]) && request.fits(&[0]));
        assert!(!request.fits(&[4]) && !request.fits(&[]) && !request.fits(&[0, 0]));
    }
}
