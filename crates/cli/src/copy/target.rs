//! A host as the source sees it, until the session begins.

use anyhow::{Result, bail};
use squall_harness::terminal::error_text;

use super::connection::reach;
use super::message::CopyCall;
use super::send::CopySource;
use super::{
    CopyAnswer, CopyConnection, CopyRequest, HeldContent, HostId, QueuePosition, SpaceAnswer, blocks,
};

/// A host that receives the copy.
#[derive(Debug)]
pub(crate) struct CopyTarget {
    /// As the user named it.
    pub(crate) name: String,
    pub(super) line: Option<CopyConnection>,
    id: Option<HostId>,
    /// Why nothing more is sent there, or why it lacks something.
    pub(crate) failure: Option<String>,
    /// What it may have of each file, by a look at it.
    pub(super) held: Vec<HeldContent>,
    /// Whether it has each file, with the right content.
    is_same: Vec<bool>,
    /// The number of blocks of each file that are there.
    blocks: Vec<u64>,
}

impl CopyTarget {
    /// Connects to `host` and proves the secret there. A failure is recorded.
    pub(crate) fn connect(name: &str, (host, port): (&str, u16), source: &CopySource<'_>) -> Self {
        let mut target = Self {
            name: name.into(),
            line: None,
            id: None,
            failure: None,
            held: Vec::new(),
            is_same: Vec::new(),
            blocks: Vec::new(),
        };
        match prove(host, port, source) {
            Ok((line, id)) => (target.line, target.id) = (Some(line), Some(id)),
            Err(error) => target.failure = Some(error_text(&error)),
        }
        target
    }

    /// Waits for the turn of this copy at the host; `on_waiting` is called with the copy before it.
    fn take_place(&self, on_waiting: &mut dyn FnMut(&str, &str)) -> Result<()> {
        let Some(line) = &self.line else { return Ok(()) };
        line.write(&())?;
        let mut before = None;
        loop {
            match line.read()? {
                QueuePosition::First => return Ok(()),
                QueuePosition::Refused { message } => bail!(message),
                QueuePosition::Waiting { copies, source } => {
                    if before.as_ref() != Some(&source) {
                        let more =
                            if copies == 1 { String::new() } else { format!(" and {} more", copies - 1) };
                        on_waiting(&self.name, &format!("waits for the copy from {source}{more} to end"));
                    }
                    before = Some(source);
                }
            }
        }
    }

    /// Asks what may be there.
    pub(crate) fn ask(&mut self, request: &CopyRequest) {
        let Some(line) = &self.line else { return };
        match line.write(request).and_then(|()| line.read()) {
            Ok(CopyAnswer::Ready { held, .. }) if held.len() == request.files() => {
                (self.is_same, self.blocks) = (vec![false; held.len()], vec![0; held.len()]);
                self.held = held;
            }
            Ok(CopyAnswer::Ready { .. }) => self.fail(UNFITTING.into()),
            Ok(CopyAnswer::Refused { message }) => self.fail(message),
            Err(error) => self.fail(error_text(&error)),
        }
    }

    /// Asks for the digests of files. A failure is recorded.
    pub(super) fn ask_digests(&mut self, files: &[usize]) -> Vec<Option<String>> {
        let Some(line) = &self.line else { return Vec::new() };
        match line.write(&files).and_then(|()| line.read::<Vec<Option<String>>>()) {
            Ok(digests) if digests.len() == files.len() => return digests,
            Ok(_) => self.fail(UNFITTING.into()),
            Err(error) => self.fail(error_text(&error)),
        }
        Vec::new()
    }

    /// Reports which files are the same, and asks the host to make space for the others; returns what it could not do. `sizes` has the
    /// bytes of each file.
    pub(super) fn make_space(&mut self, request: &CopyRequest, sizes: &[u64], same: &[usize]) -> Vec<String> {
        let Some(line) = &self.line else { return Vec::new() };
        match line.write(&same).and_then(|()| line.read()) {
            Ok(SpaceAnswer::Ready { held, failures }) if request.fits(&held) => {
                held.into_iter().for_each(|(file, held)| self.blocks[file] = held);
                for file in same {
                    (self.is_same[*file], self.blocks[*file]) = (true, blocks(sizes[*file]));
                }
                return failures;
            }
            Ok(SpaceAnswer::Ready { .. }) => self.fail(UNFITTING.into()),
            Ok(SpaceAnswer::Refused { message }) => self.fail(message),
            Err(error) => self.fail(error_text(&error)),
        }
        Vec::new()
    }

    /// Whether it still takes part.
    pub(crate) const fn is_left(&self) -> bool {
        self.line.is_some()
    }

    /// Whether it has to be sent file number `file`.
    pub(super) fn lacks(&self, file: usize) -> bool {
        self.is_left() && !self.is_same[file]
    }

    /// The number of blocks that are there of file number `file`.
    pub(super) fn blocks(&self, file: usize) -> u64 {
        self.blocks.get(file).copied().unwrap_or(0)
    }

    pub(super) fn fail(&mut self, message: String) {
        self.failure.get_or_insert(message);
        self.line = None;
    }
}

/// Waits for the turn of this copy at each host, one after the other in the order of their numbers, so that copies to the
/// same hosts never wait for each other. A failure is recorded.
pub(crate) fn take_places(targets: &mut [CopyTarget], on_waiting: &mut dyn FnMut(&str, &str)) {
    let mut order: Vec<usize> = (0..targets.len()).filter(|i| targets[*i].id.is_some()).collect();
    order.sort_by_key(|i| targets[*i].id);
    for (place, i) in order.iter().copied().enumerate() {
        let same = place.checked_sub(1).map(|before| order[before]);
        if let Some(same) = same.filter(|same| targets[*same].id == targets[i].id) {
            let message = format!("it is the same host as {}: name it once", targets[same].name);
            targets[i].fail(message);
        } else if let Err(error) = targets[i].take_place(on_waiting) {
            targets[i].fail(error_text(&error));
        }
    }
}

/// Connects, proves the secret and reads the number of the host.
fn prove(host: &str, port: u16, source: &CopySource<'_>) -> Result<(CopyConnection, HostId)> {
    let trust = source.trust;
    let line = reach(host, port, trust, &CopyCall::Control)?.into_line(source.silence)?;
    let id = line.read()?;
    Ok((line, id))
}

const UNFITTING: &str = "its answer does not fit the request: run the same release there";
