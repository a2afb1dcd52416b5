//! Mirrors: rows that one member writes and others read, as both sides keep them.

use std::collections::BTreeMap;

use squall_fabric::{Event, MirrorId, MirrorKey, NodeId, Region};

use super::frame::Violation;

/// A mirror that this node has published.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) key: MirrorKey,
    pub(super) region: Region,
    /// Who may attach.
    readers: Vec<NodeId>,
    /// Who has attached: pushes go to them.
    pub(super) subscribers: Vec<Subscriber>,
}

/// A reader that has attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscriber {
    /// The reader's place among the peers.
    pub(super) peer: usize,
    /// What the reader calls its view.
    pub(super) view: u32,
}

/// A peer's wish to attach a mirror.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    view: u32,
    words: u64,
}

/// The mirrors that this node has published.
#[derive(Debug, Default)]
pub(super) struct Mirrors {
    mirrors: Vec<Mirror>,
    by_key: BTreeMap<MirrorKey, MirrorId>,
}

impl Mirrors {
    /// Adds a mirror without subscribers.
    ///
    /// # Panics
    /// If the key is in use, or the region is larger than a frame can address.
    pub(super) fn publish(&mut self, key: MirrorKey, region: &Region, readers: &[NodeId]) -> MirrorId {
        assert!(u32::try_from(region.words()).is_ok(), "a mirror of 32 GiB or more");
        let id = MirrorId(u32::try_from(self.mirrors.len()).expect("fewer than 2^32 mirrors"));
        assert!(self.by_key.insert(key, id).is_none(), "mirror {key:?} is published already");
        let (region, readers) = (region.clone(), readers.to_vec());
        self.mirrors.push(Mirror { key, region, readers, subscribers: Vec::new() });
        id
    }

    /// The mirror `id`.
    ///
    /// # Panics
    /// If it was not published here.
    pub(super) fn mirror(&self, id: MirrorId) -> &Mirror {
        self.mirrors.get(id.0 as usize).unwrap_or_else(|| panic!("{id:?} was not published by this node"))
    }

    /// Takes the request of `node`, the peer at `peer`, if the mirror is published for it; `None` if not yet.
    pub(super) fn subscribe(
        &mut self,
        key: MirrorKey,
        request: Request,
        peer: usize,
        node: NodeId,
    ) -> Result<Option<Event>, Violation> {
        let Some(id) = self.by_key.get(&key) else { return Ok(None) };
        let mirror = &mut self.mirrors[id.0 as usize];
        if !mirror.readers.contains(&node) {
            return Ok(None);
        }
        if mirror.region.words() as u64 != request.words {
            return Err(Violation("a mirror attached with another size than it was published with"));
        }
        mirror.subscribers.push(Subscriber { peer, view: request.view });
        Ok(Some(Event::Attached { key: mirror.key, reader: node }))
    }

    /// A peer is gone: nothing is pushed to it any more.
    pub(super) fn unsubscribe(&mut self, peer: usize) {
        for mirror in &mut self.mirrors {
            mirror.subscribers.retain(|subscriber| subscriber.peer != peer);
        }
    }
}

/// This node's views of one peer's mirrors, and the peer's requests for mirrors of this node.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// In order of their numbers.
    views: Vec<View>,
    by_key: BTreeMap<MirrorKey, u32>,
    /// All that the peer ever asked for, whether it is published for it or not.
    requests: BTreeMap<MirrorKey, Request>,
}

/// A copy of a peer's mirror, filled by its pushes.
#[derive(Debug)]
pub(super) struct View {
    pub(super) region: Region,
    /// Nothing is stored into it any more [M3].
    pub(super) frozen: bool,
}

impl Views {
    /// The view of `key`, and its number if it is new.
    ///
    /// # Panics
    /// If the key was attached with another size, or the mirror is larger than a frame can address.
    pub(super) fn attach(
        &mut self,
        key: MirrorKey,
        words: usize,
        allocate: impl FnOnce(usize) -> Region,
    ) -> (Region, Option<u32>) {
        assert!(u32::try_from(words).is_ok(), "a mirror of 32 GiB or more");
        if let Some(view) = self.by_key.get(&key) {
            let region = &self.views[*view as usize].region;
            assert!(region.words() == words, "mirror {key:?} is attached with {} words", region.words());
            return (region.read_only(), None);
        }
        let number = u32::try_from(self.views.len()).expect("fewer than 2^32 views");
        let region = allocate(words);
        self.views.push(View { region: region.clone(), frozen: false });
        self.by_key.insert(key, number);
        (region.read_only(), Some(number))
    }

    /// The view `number`, if a push of `words` words from `first` on fits into it.
    #[inline]
    pub(super) fn target(&self, number: u32, first: u32, words: u32) -> Result<&View, Violation> {
        let view =
            self.views.get(number as usize).ok_or(Violation("a push to a view that does not exist"))?;
        if u64::from(first) + u64::from(words) > view.region.words() as u64 {
            return Err(Violation("a push beyond the end of its mirror"));
        }
        Ok(view)
    }

    /// Stops the view that `region` shows; returns whether it is one of these.
    pub(super) fn freeze(&mut self, region: &Region) -> bool {
        let view = self.views.iter_mut().find(|view| view.region.id() == region.id());
        view.map(|view| view.frozen = true).is_some()
    }

    /// Keeps a request: the mirror may be published later.
    pub(super) fn on_request(&mut self, key: MirrorKey, view: u32, words: u64) -> Result<Request, Violation> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Violation("too many mirrors attached"));
        }
        let request = Request { view, words };
        if self.requests.insert(key, request).is_some() {
            return Err(Violation("a mirror attached twice"));
        }
        Ok(request)
    }

    /// The peer's request for `key`, if it came.
    pub(super) fn request(&self, key: MirrorKey) -> Option<Request> {
        self.requests.get(&key).copied()
    }
}

/// The most mirrors of this node that one peer may ask for.
const REQUESTS_MAX: usize = 1 << 20;
