//! The fetch: a member completes its shard's log before the view ends, with a majority for quorum (beside RamCast §3.5) \[G11\].
//!
//! **State.** Of each member of the shard one word, which it raises when it wedges: one more than what it counts (*closed*). A
//! member that is to echo or install a trim beyond what it has *wants* the log up to there. It asks one member at a time
//! ([`LogRequest`]), at most once each: the lowest rank that it hears and whose count is not below the trim. What comes is added to
//! its log, as if it had come from the leader, so that the rules of \[G5\] and \[G12\] apply to it.
//!
//! Members that wait for a majority (`membership/waiting.rs`) hear each other by reports, not by these words, which are frozen at those that
//! accused each other: they ask by a word beside their reports ([`GenuineMember::exchange_log`]), and may ask a member again, of which
//! they take the pieces from where they were.
//!
//! **Order of steps**, after the wedge: take what those that are not frozen had sent before they wedged, which is never
//! acknowledged; ask, or take a piece and ask for the next one; send pieces to those that ask. A member that is in the next view
//! continues to send until all are there: a member may learn only from another one's row that a proposal is decided.
//!
//! **Invariants.** A member echoes and installs a trim only when `trim <= reach`. Its count does not grow by what it fetches, so
//! the trims of later leaders are computed from the same counts. Each rank is at most once among the sources. While fewer than a quorum of the
//! shard are lost, some live member counts at least any trim that was proposed \[G10\]; a member that hears none of them (*stranded*)
//! stops, as one that the others have lost.

use squall_fabric::{Fabric, MirrorId, Region};

use super::failure::GenuineFailure;
use super::mutation;
use super::relay::{LogRelay, LogRequest, RelayGeometry};
use super::{GenuineMember, QuorumRule};
use crate::coverage::{Point, reach};
use crate::membership::RankSet;

/// What a member asks for, and which member.
#[derive(Debug, Default)]
pub(super) struct LogFetch {
    /// The log is wanted up to this timestamp.
    wanted: u64,
    /// The members that were asked.
    sources: Vec<LogSource>,
    /// Which of them is asked now.
    current: Option<usize>,
    attempts: u64,
    /// This member waits for a majority, and asks beside its reports.
    waits: bool,
}

#[derive(Debug)]
struct LogSource {
    provider: usize,
    /// How many of its pieces were taken.
    taken: u64,
    relay: Region,
}

impl LogFetch {
    /// Returns the word with which the present source is asked.
    fn request(&self) -> Option<u64> {
        let LogSource { provider, taken, .. } = self.sources[self.current?];
        Some(LogRequest { attempt: self.attempts, provider, taken }.to_word())
    }
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
        if self.table.is_ready() && !self.fetch.waits {
            let (row, table, wanted) = (&self.row, &self.table, self.fetch.wanted);
            // A count is one less than the word.
            let has_it = |rank: &usize| row.closed.load(table.row(*rank)) > wanted;
            let able = self.others().filter(|rank| !has(&self.frozen, *rank) && has_it(rank)).collect();
            if self.fetch(fabric, able) {
                work += 1;
                if let Some((shard, request)) = self.shard.as_ref().zip(self.fetch.request()) {
                    self.table.raise(shard.shard, self.row.asks, request);
                }
            }
            work += self.serve(fabric);
        }
        work
    }

    /// The other members of the own shard.
    fn others(&self) -> impl Iterator<Item = usize> {
        let shard = self.shard.as_ref().map(|shard| self.placement.members(shard.shard));
        shard.into_iter().flatten().copied().filter(|rank| *rank != self.rank)
    }

    /// While this member waits for a majority: sends others what they ask for, and asks one of those whose counts show that they have what
    /// this one lacks. `count` has by rank what a member counts of this one's shard ([`GenuineMember::wedge`]), if it is heard; `asks` has
    /// by rank the words with which members ask. Returns the word with which this one asks, or 0, and the amount of work done.
    pub fn exchange_log<F: Fabric>(
        &mut self,
        fabric: &mut F,
        asks: &[u64],
        count: impl Fn(usize) -> Option<u64>,
    ) -> (u64, usize) {
        if self.settings.quorum != QuorumRule::Majority || self.failure.is_some() {
            return (0, 0);
        }
        self.fetch.waits = true;
        let wanted = self.fetch.wanted;
        let able = self.others().filter(|rank| count(*rank).is_some_and(|count| count > wanted)).collect();
        let work = usize::from(self.fetch(fabric, able)) + self.serve_asks(fabric, asks);
        (self.fetch.request().unwrap_or(0), work)
    }

    /// Takes what has come, and acknowledges nothing of it.
    fn read_on(&mut self) -> Result<usize, GenuineFailure> {
        let Some(shard) = self.shard.as_mut().filter(|shard| !shard.has_fetched()) else { return Ok(0) };
        let work = shard.receive(&self.table, &self.row, &self.placement, &self.nodes)?;
        shard.cover();
        Ok(work)
    }

    /// Asks one of those that are `able` for what is missing, and takes what has come; returns whether there was anything to do.
    fn fetch<F: Fabric>(&mut self, fabric: &mut F, able: RankSet) -> bool {
        let Some(shard) = self.shard.as_mut().filter(|shard| self.fetch.wanted > shard.order.reach()) else {
            return false;
        };
        let geometry = RelayGeometry::new(&self.settings, self.placement.count());
        let LogFetch { sources, current, attempts, waits, .. } = &mut self.fetch;
        current.take_if(|place| !able.contains(sources[*place].provider));
        let Some(source) = current.map(|place| &mut sources[place]) else {
            let place = |rank: &usize| sources.iter().position(|source| source.provider == *rank);
            let is_new = |rank: &usize| place(rank).is_none();
            let mut again = able.iter().filter(|_| *waits);
            let Some(provider) = able.iter().find(is_new).or_else(|| again.next()) else { return false };
            reach(Point::GenuineLogAsked);
            *attempts += 1;
            *current = place(&provider).or(Some(sources.len()));
            if is_new(&provider) {
                let key = self.table.relay_key(self.rank);
                let relay = fabric.attach(self.nodes[provider], key, geometry.words());
                sources.push(LogSource { provider, taken: 0, relay });
            }
            return true;
        };
        let Some(piece) = geometry.piece(&source.relay, source.taken) else { return false };
        let taken = piece.is_ok_and(|piece| piece.into_iter().all(|entry| shard.take_entry(entry)));
        if !taken {
            self.failure = Some(GenuineFailure::Relay { provider: self.nodes[source.provider] });
            return true;
        }
        shard.cover();
        source.taken += 1;
        true
    }

    /// Sends others of the shard what they ask for: until the view ends here, and then until all are in the next one. Returns the
    /// amount of work done.
    pub fn serve<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let asks = |rank| match self.shard {
            Some(_) => self.row.asks.load(self.table.row(rank)),
            None => 0,
        };
        let asks: Vec<u64> = (0..self.nodes.len()).map(asks).collect();
        self.serve_asks(fabric, &asks) + self.table.flush(fabric)
    }

    /// As [`GenuineMember::serve`], for members that wait; `asks` has by rank the words with which members ask.
    pub fn serve_asks<F: Fabric>(&mut self, fabric: &mut F, asks: &[u64]) -> usize {
        let Some(shard) = &self.shard else { return 0 };
        let mut work = 0;
        for rank in self.placement.members(shard.shard).iter().copied().filter(|rank| *rank != self.rank) {
            let request = asks.get(rank).copied().and_then(LogRequest::from_word);
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
        work
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
