//! What a member's part of a shard has to take, view by view, while the group goes ahead (Derecho §3.4, app. A).

use std::collections::VecDeque;

use squall_fabric::NodeId;

use crate::membership::View;

/// What comes next in a shard.
#[derive(Debug)]
pub enum Turn<P> {
    /// A view, and the shard's members in it.
    View(View, Vec<NodeId>),
    /// If this member is among them: what is delivered in the view.
    Messages(P),
}

/// What has yet to be taken, in order.
///
/// **Law.** [`Turns::begin_view`] for each view of the group, then [`Turns::push`] if this member is in the shard in it.
/// Bounded: of views in a row in which this member is not in the shard only the last two are kept. But one
/// stands between two stays, or the messages that others had meanwhile would be missed \[A1\].
#[derive(Debug)]
pub struct Turns<P> {
    turns: VecDeque<Turn<P>>,
}

impl<P> Default for Turns<P> {
    fn default() -> Self {
        Self { turns: VecDeque::new() }
    }
}

impl<P> Turns<P> {
    /// A view begins.
    pub fn begin_view(&mut self, view: &View, members: Vec<NodeId>) {
        // No messages follow these two, so this member is in the shard in neither: the latter says all that the former does.
        if let [.., Turn::View(..), Turn::View(..)] = self.turns.make_contiguous() {
            self.turns.remove(self.turns.len() - 2);
        }
        self.turns.push_back(Turn::View(view.clone(), members));
    }

    /// This member is in the shard, and takes its messages from here.
    pub fn push(&mut self, messages: P) {
        self.turns.push_back(Turn::Messages(messages));
    }

    /// Takes what is next.
    pub fn pop(&mut self) -> Option<Turn<P>> {
        self.turns.pop_front()
    }

    /// Whether all is taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views as numbers, the messages of a view as its number times ten.
    fn taken(turns: &mut Turns<u64>) -> Vec<u64> {
        std::iter::from_fn(|| turns.pop())
            .map(|turn| match turn {
                Turn::View(view, _) => view.id,
                Turn::Messages(view) => view * 10,
            })
            .collect()
    }

    fn begin(turns: &mut Turns<u64>, views: &[(u64, bool)]) {
        for (id, is_in) in views {
            turns.begin_view(&View { id: *id, ..View::first(Vec::new()) }, Vec::new());
            if *is_in {
                turns.push(*id);
            }
        }
    }

    /// Who leaves a shard and comes in again before it has taken anything learns that it was out.
    #[test]
    fn a_view_outside_stands_between_two_stays() {
        let mut turns = Turns::default();
        begin(&mut turns, &[(1, true), (2, false), (3, true)]);
        assert_eq!(taken(&mut turns), [1, 10, 2, 3, 30]);
    }

    /// However long a member is outside, little is kept, and the latest view is.
    #[test]
    fn views_outside_are_left_out() {
        let mut turns = Turns::default();
        begin(&mut turns, &[(1, true)]);
        (2..100).for_each(|view| begin(&mut turns, &[(view, false)]));
        assert_eq!(taken(&mut turns), [1, 10, 98, 99]);
        begin(&mut turns, &[(100, false), (101, false), (102, false), (103, true)]);
        assert_eq!(taken(&mut turns), [102, 103, 1030]);
    }
}
