//! A caller of the object whose parts are in the shards: it numbers its updates, sends some again, and gathers replies (RamCast §2.2).

use squall_fabric::sim::Prng;
use squall_fabric::{Duration, Instant, NodeId};
use squall_protocols::genuine::{
    AskForReplies, GenuineMember, PartKind, PartReplies, ReplyGathering, ReplyState, ShardedOutcome,
    ShardedUpdate, UpdatePart,
};

use super::plan::GenuinePlan;

/// How often a caller looks for answers.
const LOOK_EVERY: Duration = Duration::from_micros(30);

/// What has become of an update, with its number and its shards.
pub(super) type CallerOutcome = ((u64, u64), ShardedOutcome);

/// One node's updates.
pub(super) struct UpdateCaller {
    pub(super) node: NodeId,
    pub(super) gathering: ReplyGathering<(u64, u64)>,
    /// The view that the gathering has seen.
    view: Option<u64>,
    /// What members have been asked and not answered.
    asked: Vec<AskForReplies>,
    looks_at: Instant,
    /// How many updates there were.
    begun: u64,
    /// The latest update with its shards, and whether it is new.
    latest: Option<(u64, u64)>,
    is_new: bool,
    prng: Prng,
}

impl UpdateCaller {
    pub(super) fn new(seed: u64, node: NodeId) -> Self {
        Self {
            node,
            gathering: ReplyGathering::new(node),
            view: None,
            asked: Vec::new(),
            looks_at: Instant::from_nanos(0),
            begun: 0,
            latest: None,
            is_new: false,
            prng: Prng::new(seed ^ 0xca11 ^ u64::from(node.0) << 32),
        }
    }

    /// The bytes of the next message: a new update, or the latest one again. Without states they are the payload alone.
    pub(super) fn begin(&mut self, plan: &GenuinePlan, destinations: u64, payload: Vec<u8>) -> Vec<u8> {
        if !plan.settings.has_states {
            return payload;
        }
        let again = self.latest.filter(|(_, shards)| *shards == destinations && self.prng.chance(300));
        self.is_new = again.is_none();
        let number = match again {
            Some((number, _)) => number,
            None => self.gathering.begin(destinations, (self.begun, destinations)),
        };
        self.begun += u64::from(self.is_new);
        self.latest = Some((number, destinations));
        let known = self.gathering.known().min(number);
        let parts = (0..plan.shards).filter(|shard| destinations >> shard & 1 == 1);
        let part = |shard| UpdatePart { shard, kind: PartKind::Update, bytes: &payload };
        ShardedUpdate::encode(number, known, parts.map(part))
    }

    /// The message was not sent.
    pub(super) fn cancel(&mut self) {
        if std::mem::take(&mut self.is_new)
            && let Some((number, _)) = self.latest.take()
        {
            self.gathering.cancel(number);
        }
    }

    /// Follows the views; returns the updates that never get all replies.
    pub(super) fn follow(&mut self, member: &GenuineMember) -> Vec<CallerOutcome> {
        if self.view.replace(member.view()) != Some(member.view()) {
            self.gathering.begin_view(member.members())
        } else {
            self.gathering.poll_lost()
        }
    }

    /// Asks members, and takes what they answer; `ask` returns `None` for one that cannot be asked.
    pub(super) fn look(
        &mut self,
        now: Instant,
        shards: usize,
        mut ask: impl FnMut(AskForReplies) -> Option<KeptAnswer>,
    ) -> Vec<CallerOutcome> {
        let mut outcomes = Vec::new();
        if now < self.looks_at || self.gathering.open() == 0 {
            return outcomes;
        }
        self.looks_at = now + LOOK_EVERY;
        for shard in 0..shards {
            while let Some(asked) = self.gathering.poll_ask(shard) {
                self.asked.push(asked);
            }
        }
        for asked in std::mem::take(&mut self.asked) {
            let AskForReplies { shard, node, number } = asked;
            // A connection may break, with or without a death.
            let answer = if self.prng.chance(30) { None } else { ask(asked) };
            outcomes.extend(match answer {
                None => {
                    self.gathering.handle_failure(shard, node);
                    None
                }
                Some(KeptAnswer::NotYet) => {
                    self.asked.push(asked);
                    None
                }
                Some(KeptAnswer::Forgotten) => self.gathering.handle_forgotten(shard, number),
                Some(KeptAnswer::Replies(replies)) => self.gathering.handle_replies(shard, number, replies),
            });
        }
        outcomes
    }

    /// When it wants to look.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        (self.gathering.open() > 0).then_some(self.looks_at)
    }
}

/// What a member answers.
pub(super) enum KeptAnswer {
    NotYet,
    Forgotten,
    Replies(PartReplies),
}

impl From<ReplyState<'_>> for KeptAnswer {
    fn from(kept: ReplyState<'_>) -> Self {
        match kept {
            ReplyState::NotYet => Self::NotYet,
            ReplyState::Forgotten => Self::Forgotten,
            ReplyState::Replies(replies) => Self::Replies(replies.clone()),
        }
    }
}
