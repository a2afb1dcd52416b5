//! The events that a member's part of a shard has to process, view by view, while the group runs ahead (Derecho §3.4,
//! app. A).

use std::collections::VecDeque;

use squall_fabric::NodeId;

use crate::membership::View;

/// The next event of a shard.
#[derive(Debug)]
pub enum ShardEvent<P> {
    /// A view, and the shard's members in it.
    View(View, Vec<NodeId>),
    /// If this member is among them: the messages that are delivered in the view.
    Messages(P),
}

/// The events that are to be processed, in order.
///
/// **Law.** [`ShardEvents::begin_view`] for each view of the group, then [`ShardEvents::push`] if this member is in
/// the shard in it. It is bounded: of consecutive views in which this member is not in the shard only the last two
/// are kept. But one is kept between two stays, or it would go unnoticed that others had messages meanwhile \[A1\].
#[derive(Debug)]
pub struct ShardEvents<P> {
    events: VecDeque<ShardEvent<P>>,
}

impl<P> Default for ShardEvents<P> {
    fn default() -> Self {
        Self { events: VecDeque::new() }
    }
}

impl<P> ShardEvents<P> {
    /// Notes that a view begins.
    pub fn begin_view(&mut self, view: &View, members: Vec<NodeId>) {
        // No messages follow these two views, so this member is in the shard in neither: the latter makes the former
        // redundant.
        if let [.., ShardEvent::View(..), ShardEvent::View(..)] = self.events.make_contiguous() {
            self.events.remove(self.events.len() - 2);
        }
        self.events.push_back(ShardEvent::View(view.clone(), members));
    }

    /// Notes that this member is in the shard, and takes its messages from `messages`.
    pub fn push(&mut self, messages: P) {
        self.events.push_back(ShardEvent::Messages(messages));
    }

    /// Returns the sources of messages that have not been taken yet, in order.
    pub fn sources(&mut self) -> impl Iterator<Item = &mut P> {
        self.events.iter_mut().filter_map(|event| match event {
            ShardEvent::Messages(messages) => Some(messages),
            ShardEvent::View(..) => None,
        })
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<ShardEvent<P>> {
        self.events.pop_front()
    }

    /// Returns whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the events: views as numbers, and the messages of a view as its number times ten.
    fn taken(events: &mut ShardEvents<u64>) -> Vec<u64> {
        std::iter::from_fn(|| events.pop())
            .map(|event| match event {
                ShardEvent::View(view, _) => view.id,
                ShardEvent::Messages(view) => view * 10,
            })
            .collect()
    }

    fn begin(events: &mut ShardEvents<u64>, views: &[(u64, bool)]) {
        for (id, is_in) in views {
            events.begin_view(&View { id: *id, ..View::first(Vec::new()) }, Vec::new());
            if *is_in {
                events.push(*id);
            }
        }
    }

    /// A member that leaves a shard and returns before it has processed anything learns that it was out.
    #[test]
    fn a_view_outside_is_kept_between_two_stays() {
        let mut events = ShardEvents::default();
        begin(&mut events, &[(1, true), (2, false), (3, true)]);
        assert_eq!(taken(&mut events), [1, 10, 2, 3, 30]);
    }

    /// However long a member is outside, few views are kept, among them the latest.
    #[test]
    fn most_views_outside_are_dropped() {
        let mut events = ShardEvents::default();
        begin(&mut events, &[(1, true)]);
        (2..100).for_each(|view| begin(&mut events, &[(view, false)]));
        assert_eq!(taken(&mut events), [1, 10, 98, 99]);
        begin(&mut events, &[(100, false), (101, false), (102, false), (103, true)]);
        assert_eq!(taken(&mut events), [102, 103, 1030]);
    }
}
