//! The fetch: a member completes its shard's log before the view ends, with a majority for quorum (beside RamCast §3.5) \[G11\].
//!
//! **State.** Of each member of the shard one word, which it raises when it wedges: one more than what it counts (*closed*). A
//! member that is to echo or install a trim beyond what it has *wants* the log up to there. It asks one member at a time
//! ([`LogRequest`]), at most once each: the lowest rank that it hears and whose count is not below the trim. What comes is added to
//! its log, as if it had come from the leader, so that the rules of \[G5\] and \[G12\] apply to it.
//!
//! **Order of steps**, after the wedge: take what those that are not frozen had sent before they wedged, which is never
//! acknowledged; ask, or take a piece and ask for the next one; send pieces to those that ask. A member that is in the next view
//! continues to send until all are there: a member may learn only from another one's row that a proposal is decided.
//!
//! **Invariants.** A member echoes and installs a trim only when `trim <= reach`. Its count does not grow by what it fetches, so
//! the trims of later leaders are computed from the same counts. `asked` has each rank at most once. While fewer than a quorum of the
//! shard are lost, some live member counts at least any trim that was proposed \[G10\]; a member that hears none of them (*stranded*)
//! stops, as one that the others have lost.

use squall_fabric::{Fabric, MirrorId, Region};

use super::failure::GenuineFailure;
use super::mutation;
use super::relay::{LogRelay, LogRequest, RelayGeometry};
use super::table::ShardTable;
use super::{GenuineMember, QuorumRule};
use crate::coverage::{Point, reach};
use crate::membership::RankSet;

/// What a member asks for, and which member.
#[derive(Debug, Default)]
pub(super) struct LogFetch {
    /// The log is wanted up to this timestamp.
    wanted: u64,
    source: Option<LogSource>,
    /// The members that were asked.
    asked: RankSet,
}

#[derive(Debug)]
struct LogSource {
    request: LogRequest,
    relay: Region,
}

impl GenuineMember {
    /// Returns whether this member has its shard's log up to the trims of a proposal, which it is about to echo or install; if not, it
    /// fetches the rest while it is evaluated. `trims` is as for [`GenuineMember::finish`].
    pub fn has_log(&mut self, trims: &[u64]) -> bool {
        let Some(shard) = self.shard.as_ref().filter(|_| self.settings.quorum == QuorumRule::Majority) else {
            return true;
        };
        let trim = trims[shard.shard].saturating_sub(1);
        self.fetch.wanted = self.fetch.wanted.max(trim);
        let has_log = trim <= shard.order.reach();
        if !has_log {
            reach(Point::GenuineLogAwaited);
        }
        has_log || mutant!(SkipFetch)
    }

    /// Whether this member cannot get what it lacks of its shard's log: it hears no member that has it.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        let Some(shard) = &self.shard else { return false };
        let is_gone = |rank: &usize| {
            let closed = self.row.closed.load(self.table.row(*rank));
            has(&self.frozen, *rank) || closed != 0 && closed <= self.fetch.wanted
        };
        let mut others = self.placement.members(shard.shard).iter().filter(|rank| **rank != self.rank);
        self.fetch.wanted > shard.order.reach() && others.all(is_gone)
    }

    /// Evaluates once after the wedge; returns the amount of work done.
    pub(super) fn complete_log<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        if self.settings.quorum != QuorumRule::Majority || self.failure.is_some() {
            return 0;
        }
        let mut work = match self.read_on() {
            Ok(work) => work,
            Err(failure) => {
                self.failure = Some(failure);
                return 1;
            }
        };
        if self.table.is_ready() {
            work += self.fetch(fabric) + self.serve(fabric);
        }
        work
    }

    /// Takes what has come, and acknowledges nothing of it.
    fn read_on(&mut self) -> Result<usize, GenuineFailure> {
        let Some(shard) = self.shard.as_mut().filter(|shard| !shard.has_fetched()) else { return Ok(0) };
        let work = shard.receive(&self.table, &self.row, &self.placement, &self.nodes)?;
        shard.cover();
        Ok(work)
    }

    /// Asks for what is missing, and takes what has come.
    fn fetch<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let Some(shard) = &mut self.shard else { return 0 };
        let LogFetch { wanted, source, asked } = &mut self.fetch;
        if *wanted <= shard.order.reach() {
            return 0;
        }
        let (row, table, frozen) = (&self.row, &mut self.table, self.frozen);
        // A count is one less than the word.
        let has_it = |table: &ShardTable, rank: usize| {
            !has(&frozen, rank) && row.closed.load(table.row(rank)) > *wanted
        };
        let geometry = RelayGeometry::new(&self.settings, self.placement.count());
        source.take_if(|source| !has_it(table, source.request.provider));
        let Some(LogSource { request, relay }) = source else {
            let candidate = |rank: &&usize| **rank != self.rank && !has(asked, **rank);
            let mut candidates = self.placement.members(shard.shard).iter().filter(candidate);
            let Some(provider) = candidates.find(|rank| has_it(table, **rank)).copied() else { return 0 };
            reach(Point::GenuineLogAsked);
            asked.insert(provider);
            let attempt = asked.len() as u64;
            let request = LogRequest { attempt, provider, taken: 0 };
            let relay = fabric.attach(self.nodes[provider], table.relay_key(self.rank), geometry.words());
            table.raise(shard.shard, row.asks, request.to_word());
            *source = Some(LogSource { request, relay });
            return 1;
        };
        let Some(piece) = geometry.piece(relay, request.taken) else { return 0 };
        let taken = piece.is_ok_and(|piece| piece.into_iter().all(|entry| shard.take_entry(entry)));
        if !taken {
            self.failure = Some(GenuineFailure::Relay { provider: self.nodes[request.provider] });
            return 1;
        }
        shard.cover();
        request.taken += 1;
        table.raise(shard.shard, row.asks, request.to_word());
        1
    }

    /// Sends others of the shard what they ask for: until the view ends here, and then until all are in the next one. Returns the
    /// amount of work done.
    pub fn serve<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let Some(shard) = &self.shard else { return 0 };
        let mut work = 0;
        for rank in self.placement.members(shard.shard).iter().copied().filter(|rank| *rank != self.rank) {
            let request = LogRequest::from_word(self.row.asks.load(self.table.row(rank)));
            let Some(request) = request.filter(|request| request.provider == self.rank) else { continue };
            if self.relays.iter().all(|relay| relay.reader != rank) {
                let geometry = RelayGeometry::new(&self.settings, self.placement.count());
                let clock = self.row.acknowledged.load(self.table.row(rank));
                let name = (self.table.relay_key(rank), geometry);
                self.relays.push(LogRelay::open(fabric, name, (rank, self.nodes[rank]), clock));
            }
            let relay = self.relays.iter_mut().find(|relay| relay.reader == rank).expect("it is open");
            work += relay.send(fabric, shard, request.taken);
        }
        work + self.table.flush(fabric)
    }

    /// The mirrors by which this member sends parts of the log, to be retired like the others.
    pub fn relays(&self) -> impl Iterator<Item = MirrorId> {
        self.relays.iter().map(LogRelay::mirror)
    }
}

/// Whether a member is in a set.
fn has(set: &RankSet, rank: usize) -> bool {
    mutant!(WrapRanks => return set.iter().any(|other| other % 64 == rank % 64));
    set.contains(rank)
}

#[cfg(test)]
mod tests;
