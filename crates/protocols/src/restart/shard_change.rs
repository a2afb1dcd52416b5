//! A changed set of durable shards: what a process has of its views and votes, in terms of another set (Derecho §3.4, "Total failures",
//! which does not look at this).
//!
//! The set changes while the group is down. A process maps what it has when it starts, before it meets others, so that the rules of a restart
//! see one set: that of the present configuration, which all processes that take part have. A shard that is removed is gone, as if it had
//! never been. One that is added has always been there, and empty: it has no members in views of before, and all that a log may have of it
//! is void, since a shard of the same name may have been removed earlier, and a process that was away then has its records still. In the
//! list of ended views it begins again behind the last one, and so it does in the end of the present view, also if that was proposed before.
//!
//! The map depends on the view and on the sets alone, so that processes that know the same view have the same of it afterwards.

use super::register::{Register, ViewRecord};
use super::view_chain::{LOST, ViewChain};
use super::view_end::{DurableView, ViewEnd, Vote};
use crate::membership::RankSet;

/// A changed set of shards: for each shard its number in the set before, none if it is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardChange(Vec<Option<usize>>);

impl ShardChange {
    /// The change from one set of shards to another, each by name in the order of its shards.
    #[must_use]
    pub fn new<'a>(before: &[&'a str], after: &[&'a str]) -> Self {
        let place = |name: &&str| before.iter().position(|other| other == name);
        Self(after.iter().map(place).collect())
    }

    /// The shards that are added.
    pub fn added(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().filter(|(_, before)| before.is_none()).map(|(shard, _)| shard)
    }

    fn of<T: Copy>(&self, values: &[T], added: T) -> Vec<T> {
        self.0.iter().map(|before| before.map_or(added, |shard| values[shard])).collect()
    }

    fn view(&self, view: &DurableView) -> DurableView {
        DurableView { shards: self.of(&view.shards, RankSet::EMPTY), ..view.clone() }
    }

    fn chain(&self, chain: &ViewChain) -> ViewChain {
        let mapped = chain.counted().map(|(view, trims)| (view, self.of(trims, 0)));
        let begins = |trims: &mut Vec<u64>| self.added().for_each(|shard| trims[shard] = LOST);
        ViewChain::of_counted(chain.first(), chain.end(), self.0.len(), mapped, begins)
    }

    fn vote(&self, Vote { ballot, end }: &Vote) -> Vote {
        let end =
            ViewEnd { trims: self.of(&end.trims, LOST), next: self.view(&end.next), origin: end.origin };
        Vote { ballot: *ballot, end }
    }
}

impl Register {
    /// The register in terms of a changed set of shards, whose digest is `layout`.
    ///
    /// # Panics
    /// If the change is from a set of another size.
    #[must_use]
    pub fn with_shards(&self, change: &ShardChange, layout: u64) -> Self {
        let ViewRecord { view, chain } = &self.record;
        let record = ViewRecord { view: change.view(view), chain: change.chain(chain) };
        let vote = self.vote.as_ref().map(|vote| change.vote(vote));
        Self { layout, record, vote, ..self.clone() }
    }

    /// Takes over what the process has done with this register meanwhile, in terms of another set of shards, in the same view: starts,
    /// promise and damage. None if it has voted in a restart: that vote may have been decided, and its end is that of the other set.
    #[must_use]
    pub fn continued(self, other: &Self) -> Option<Self> {
        let ballot = |register: &Self| register.vote.as_ref().map(|vote| vote.ballot);
        (ballot(other) <= ballot(&self)).then(|| Self {
            node: other.node,
            tag: other.tag,
            starts: other.starts,
            damaged_in: other.damaged_in,
            promise: other.promise.max(self.promise),
            ..self
        })
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::super::view_end::EndOrigin;
    use super::*;
    use crate::ends::Ballot;

    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    /// The names of a set, of which each bit is one.
    fn names(bits: usize) -> Vec<&'static str> {
        (0..NAMES.len()).filter(|bit| bits >> bit & 1 == 1).map(|bit| NAMES[bit]).collect()
    }

    /// A register in which all that is of a shard says which one it is.
    fn register(names: &[&str]) -> Register {
        let number =
            |name: &str| 1 + NAMES.iter().position(|other| *other == name).expect("it is one") as u64;
        let trims = |view: u64| names.iter().map(|name| 100 * view + number(name)).collect::<Vec<_>>();
        let shards = || names.iter().map(|name| RankSet::from_bits(number(name))).collect();
        let view = |number| DurableView { number, members: [4, 5, 6].map(NodeId).into(), shards: shards() };
        let mut chain = ViewChain::new(3);
        chain.push(&trims(3));
        chain.push(&vec![0; names.len()]);
        chain.push(&trims(5));
        chain.push(&vec![0; names.len()]);
        let vote = Vote {
            ballot: Ballot::live(1),
            end: ViewEnd { trims: trims(7), next: view(8), origin: EndOrigin::Live },
        };
        Register {
            layout: 1,
            record: ViewRecord { view: view(7), chain },
            promise: Some(vote.ballot),
            vote: Some(vote),
            ..Register::new(9, NodeId(5), DurableView::default())
        }
    }

    /// From any set to any other one: what stays is as it was, what is added has always been empty, and what is removed is gone.
    #[test]
    fn shards_keep_what_they_have_by_their_names() {
        for (from, to) in (0..64 * 64).map(|pair| (names(pair / 64), names(pair % 64))) {
            let (before, change) = (register(&from), ShardChange::new(&from, &to));
            let after = before.with_shards(&change, 2);
            assert_eq!((after.layout, after.promise, after.node), (2, before.promise, before.node));
            assert_eq!(Register::decode(&after.encode()).as_ref(), Ok(&after));
            for (shard, name) in to.iter().enumerate() {
                let old = from.iter().position(|other| other == name);
                let (of_view, of_vote) = old.map_or((RankSet::EMPTY, (LOST, RankSet::EMPTY)), |old| {
                    let end = &before.vote.as_ref().expect("it has one").end;
                    (before.view().shards[old], (end.trims[old], end.next.shards[old]))
                });
                let end = &after.vote.as_ref().expect("it has one").end;
                assert_eq!(
                    (after.view().shards[shard], (end.trims[shard], end.next.shards[shard])),
                    (of_view, of_vote)
                );
                let chain = &after.record.chain;
                for view in 0..9 {
                    let trim = before.record.chain.trim_of(view, old.unwrap_or(0));
                    let expected = trim.map(|trim| if old.is_some() { trim } else { 0 });
                    assert_eq!(chain.trim_of(view, shard), expected, "{from:?} {to:?} {view} {name}");
                }
                assert_eq!(chain.begun_again(shard), if old.is_some() { 0 } else { 7 });
            }
        }
    }

    /// A set that comes back: what has stayed in between is as it was.
    #[test]
    fn a_set_that_comes_back_has_what_stayed() {
        for (from, to) in (0..64 * 64).map(|pair| (names(pair / 64), names(pair % 64))) {
            let before = register(&from);
            let there = before.with_shards(&ShardChange::new(&from, &to), 2);
            let back = there.with_shards(&ShardChange::new(&to, &from), 1);
            // The same as if what was removed in between had never been.
            let kept: Vec<&str> = from.iter().copied().filter(|name| to.contains(name)).collect();
            let direct = before.with_shards(&ShardChange::new(&from, &kept), 3);
            assert_eq!(back, direct.with_shards(&ShardChange::new(&kept, &from), 1), "{from:?} {to:?}");
            assert_eq!(back == before, kept == from);
        }
    }

    #[test]
    fn a_vote_in_a_restart_binds_to_its_set() {
        let before = register(&["a", "b"]);
        let change = ShardChange::new(&["a", "b"], &["b", "c"]);
        let mut other = before.with_shards(&change, 2);
        other.start(true);
        let ballot = Ballot::above(other.promise, NodeId(6));
        assert!(other.promise(ballot));
        let continued = before.clone().continued(&other).expect("it has voted for nothing");
        let expected = Register { starts: 1, damaged_in: Some(7), promise: Some(ballot), ..before.clone() };
        assert_eq!(continued, expected);
        let end = other.vote.clone().expect("a live one").end;
        assert!(other.vote(Vote { ballot, end }));
        assert_eq!(before.continued(&other), None);
    }
}
