//! How a view ends, live or after its members have lost their majority for a while: the rules, as pure functions (Derecho §2, §3.4).
//!
//! One consensus, for all groups: *how does view v end?* Live leaders have the ballots (0, rank); a member that has lost its majority
//! *waits* with its state, and those that wait end the view by ballots (r, node), r ≥ 1, as soon as a majority is connected again. One
//! register ([`EndRegister`]) and one value ([`EndValue`]) stand for all subgroups of a group, in memory or durable, never two.
//!
//! **What uses it**: members that wait \[V17\] (`membership/waiting.rs`); live views ask [`may_be_decided`] of an earlier echo. Live views
//! of all groups still end by the rules of `membership`, and a group with durable subgroups comes back by the ballots of
//! [`crate::restart`], which are in the same register; see below what takes their place.
//!
//! Nothing here has a clock, a connection or a disk of its own: functions of what a member knows, and [`WaitingMember`], the state machine of
//! a member that waits. The scenario `ends` of the simulator runs all of them over a model of members, messages, disks and links; what
//! decides there is what is to decide in a group.
//!
//! **State** of a member in a view: its register (promise and vote), empty when the view begins; the ballot that it leads, with its proposal;
//! since when the club has not grown ([`LeadTimer`]); the latest report of each process ([`EndReports`]). For the life of the process: how
//! the views that it has seen have ended ([`KnownEnds`]). In a group with a durable subgroup the register is on the disk before it is
//! visible \[T6\] \[T12\] \[T15\].
//!
//! **Step order** of a member that waits ([`WaitingMember::step`]): decide by the votes that it sees; promise the highest ballot that another
//! leads; vote for the proposal of the highest ballot, when it holds what that keeps; lead, when it is its turn; propose, when a majority has
//! promised. A step changes one thing, which is written and reported before the next.
//!
//! # Waiting (section 1 of the explored page of the waiting majority; the numbers are its W1–W22)
//! - \[H1\] A live member goes over to waiting when those that it hears and that do not wait are no majority ([`hears_too_few`]); when all
//!   of them have resigned; as leader, when its cut leaves no majority, quorum or holder of a shard, or copies are missing
//!   ([`live_proposal`], [`live_tally`]); when no process that it reaches has what it is to echo; when a ballot is led ([`joins_ballots`]).
//! - \[H2\] It wedges first ([`may_wait`], [`may_receive`]), so that its counts are final; then it promises a ballot above all live ones.
//! - \[H3\] Live members take one that waits as resigned: it leads no more ([`resigned`]), echoes no more, and follows every leader
//!   ([`Following`]).
//! - \[H4\] Reports: an older one replaces no newer one, and they count for members of the view that are in it ([`EndReports`]).
//! - \[H5\] A pair that has lost each other in a view stays lost in it, and nothing of the view before counts ([`acknowledged`]).
//!
//! # Ballots
//! - \[H6\] The club is a least set of members fewer than all that are heard, so that all hear each other ([`club`]). Its lowest member leads
//!   when it has gathered, others later and later ([`LeadTimer`]).
//! - \[H7\] A ballot above the own promise is promised; the answer is the report ([`EndRegister::follow`]).
//! - \[H8\] The leader proposes when a majority of the view has promised, dead members counted, and all others that it hears have, or have had
//!   their time.
//! - \[H9\] A new value ([`new_value`]): trims, members, placement, holders, shards given up, floor.
//! - \[H10\] Its need: how many of those that it keeps in each shard have to vote; a leader that takes it over may lower that, and votes carry
//!   the least that is known ([`EndProposal`]).
//! - \[H11\] The vote of the highest ballot is taken over, unchanged, if it may have been decided ([`taken_over`]).
//! - \[H12\] A live leader takes over an echo by the same test ([`echo_taken_over`]).
//! - \[H13\] Decided is what has the votes of a majority in one ballot, and as many of those that it keeps as it needs: votes alone
//!   ([`decided`]).
//! - \[H14\] A member votes when it holds what the value keeps of shards that are durable or have a majority for quorum ([`has_content`]).
//!
//! # Views
//! - \[H15\] The next view begins without suspicion ([`first_suspects`]) and with an empty register.
//! - \[H16\] Every process that knows how a view has ended reports that to those that are in it ([`KnownEnds::report_to`]). A leaver ends
//!   when all that stay have entered ([`may_depart`]).
//! - \[H17\] A process that is left behind votes no more, and learns what has become of its messages ([`message_fate`]).
//! - \[H18\] A member ends when it knows that too many are dead, and never for silence ([`no_way_back`]).
//! - \[H19\] A joiner is heard by all that stay, and was never a member ([`may_admit`]); without its base it holds no state.
//! - \[H20\] A restarted process is the same acceptor, without memory.
//! - \[H21\] A request is answered when it is delivered ([`may_reply`]).
//! - \[H22\] Unordered subgroups need nothing else: what is beyond the trims is sent again \[V7\]. Without partition safety no member waits.
//!
//! # Moves, floors and wholeness (section 1 of the explored page of shards that move; its GD numbers are K here)
//! The value names the members of each shard and which of them are whole \[K11\]; a shard that moves keeps two of its holders \[K19\];
//! clocks begin above all earlier trims \[K6\]; a durable shard ends with the longest of enough logs \[K13\] \[K14\], continues without a
//! whole member \[K17\], and is never given up.
//!
//! # Where the pages contradict each other, and what holds here
//! Seeds are of the scenario `ends` as it was when it found them, by kind of shards; most do not reproduce it any more.
//! 1. *Need and restarts* (W10, W20; mix 86): a value that keeps three, one of them restarted, asked for two votes of copies, and only one
//!    member could be one. A restarted member is no copy in memory; need does not count it, and its vote says so.
//! 2. *A majority shard whose members have all restarted* (W9, W18, and T13; mix 5 and 277): by W9 the leader waits for a quorum that cannot come, so a
//!    group could not come back from its logs. When all members of such a shard are dead or restarted it is given up; members of a durable group that
//!    end for its quorum start again without memory.
//! 3. *A durable shard without a whole member* (W9 waits for a holder, GD17 continues; durable 67 and 85): GD17. What is before the view is then
//!    with several processes, and fetched view by view.
//! 4. *Copies of a durable shard* (W13 counts its members that do not leave, GD16 those that stay in the shard): GD16.
//! 5. *What a member needs before it votes* (GD15: its shards in this view; W14: those in which it is kept): W14. A vote of a member that is not kept
//!    is no copy.
//! 6. *A holder that restarts between decision and view* (GD11, W20; mix 180): the view names it, and it holds nothing. So a view's `whole` is
//!    what was known at the decision; if no other holds the state, the next view gives the shard up \[A7\].
//! 7. *A live value that a ballot takes over* (W13 asks for copies of durable shards in ballots): need 0 stays 0 where all that stay published what
//!    counts; so one test serves live leaders and ballots.
//! 8. *Moves of shards in memory* (no page): as durable ones \[K19\].
//! 9. *Content out of reach* (W14; seed 148, and the one partial run of the page): the longest log is at a member that is heard no more, so no
//!    other can vote for the trim that its answer gave, and all waited for it. A member that lacks content still leads when its time comes.
//! 10. *A leaver of a durable shard without a whole member* (A9 spares it, as others have a log of this view; seeds 49001602, 49001854): it may be
//!     the only one with an earlier view. It stays until a member that stays holds the state.
//!
//! # What this is to replace
//! In `membership/`: `stop.rs` becomes [`no_way_back`]; `earlier_proposal`, `new_proposal`, `trim`, `orphan` and `tally` become [`live_proposal`] and
//! [`live_tally`] (`agreement.rs`), with [`EndValue`] in place of `Proposal`; `follows` and `leader` become [`Following`] and [`resigned`]. In
//! `restart/`: `ViewEnd`, `Vote` and the register's promise and vote become [`EndValue`], [`EndVote`] and [`EndRegister`]; `acceptor.rs` and
//! `leader.rs` become [`WaitingMember`]; `keep_holders` becomes a part of [`new_value`].
//!
//! `Deviation:` (Derecho §3.4) a member that has lost its majority does not shut down.

mod after;
mod ballot;
mod club;
mod decision;
mod live;
pub mod mutation;
mod proposal;
mod report;
mod takeover;
#[cfg(test)]
mod tests;
mod value;
mod view;
mod vote;
mod waiting;

pub use self::after::{KnownEnds, MessageFate, NoWayBack, may_admit, may_depart, message_fate, no_way_back};
pub use self::ballot::Ballot;
pub use self::club::{ClubGathering, EndSettings, LeadDue, LeadTimer, apart, club};
pub use self::decision::{decided, has_content, is_decided, lacking};
pub use self::live::{
    Following, LiveTally, RequestStage, WaitReason, acknowledged, first_suspects, hears_too_few,
    joins_ballots, live_proposal, live_tally, may_echo, may_receive, may_reply, may_wait, resigned,
};
pub use self::proposal::{EndContext, EndObstacle, NextMembers, has_orphan, leavers_spared, new_value};
pub use self::report::{EndAnswer, EndAnswers, EndReport, EndReports, RankedReports};
pub use self::takeover::{RankedVotes, echo_taken_over, may_be_decided, taken_over};
pub use self::value::EndValue;
pub use self::view::{EndingShard, EndingView, ShardKind, ShardQuorum};
pub use self::vote::{EndProposal, EndRegister, EndVote};
pub use self::waiting::{EndLead, WaitingInput, WaitingMember, WaitingStep, votes};
