//! Retirement: mirrors end, and views that nobody holds are given back [M6].
//!
//! A reader that has dropped a view asks its owner first to push nothing more to it, and takes the memory away from the
//! device when the owner has answered. So only posts that the device had by then can find the memory gone, which costs
//! a new queue pair.

use std::sync::Arc;

use squall_fabric::{Event, MirrorId, Region};

use super::VerbsFabric;
use super::frame::{Frame, Violation};

/// Whether the owner of a view pushes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detachment {
    /// It does, or will.
    Attached,
    /// It has been asked not to.
    Asked,
    /// It does not.
    Answered,
}

impl VerbsFabric {
    /// Ends a mirror. Posts under way hold its memory.
    ///
    /// # Panics
    /// If it was not published here, or is retired.
    pub(super) fn retire_mirror(&mut self, id: MirrorId) {
        let mirror = self.mirrors.mirrors.remove(id.0);
        let mirror = mirror.unwrap_or_else(|| panic!("{id:?} is not published by this node"));
        self.mirrors.by_key.remove(&mirror.key.0);
        for peer in self.peers.iter_mut().filter(|peer| mirror.readers.contains(&peer.node)) {
            peer.tell(Frame::Retire { key: mirror.key.0 });
        }
        let retired = mirror.key;
        self.events.retain(|event| !matches!(event, Event::Attached { key, .. } if *key == retired));
    }

    /// A peer has retired a mirror.
    pub(super) fn on_retire(&mut self, peer: usize, key: u64) {
        self.peers[peer].published.remove(&key);
    }

    /// The owner of a view pushes nothing more to it.
    pub(super) fn on_detached(&mut self, peer: usize, number: u32) -> Result<(), Violation> {
        let view = self.views.views.get_mut(&number);
        let view = view.filter(|view| view.peer == Some(peer) && view.detachment == Detachment::Asked);
        view.ok_or(Violation("an answer about a view that was not dropped"))?.detachment =
            Detachment::Answered;
        self.sweep_views();
        Ok(())
    }

    /// Lets go the views that nobody holds any more.
    pub(super) fn sweep_views(&mut self) {
        let Self { views, peers, .. } = self;
        let by_key = &mut views.by_key;
        views.views.retain(|number, view| {
            if !is_dropped(&view.region) {
                return true;
            }
            let name = (view.owner, view.key);
            if by_key.get(&name) == Some(number) {
                by_key.remove(&name);
            }
            let Some(place) = view.peer else { return false };
            let peer = &mut peers[place];
            if view.detachment == Detachment::Attached {
                view.detachment = Detachment::Asked;
                peer.tell(Frame::Detach { view: *number });
            }
            view.detachment == Detachment::Asked && peer.lost.is_none()
        });
    }
}

/// Whether only the fabric holds a view: its table of regions, and its table of views.
fn is_dropped(view: &Region) -> bool {
    Arc::strong_count(view.memory()) == 2
}
