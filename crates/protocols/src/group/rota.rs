//! Which subgroups an evaluation looks at: a node in a thousand idle ones pays for those that are used (Spindle §4.1.3 measures one
//! active subgroup among inactive ones; there each costs the active one a visit in each round).
//!
//! **Law.** An evaluation looks at the subgroups that had work lately, and at [`AT_ONCE`] of the others in turn. Before a node sleeps, one
//! evaluation looks at all ([`squall_fabric::Core::look_at_all`]): if that reports no work, the node may sleep.
//! With up to [`FEW`] subgroups it always looks at all, in the order of their ids.
//!
//! `Deviation:` (Spindle §2.4) the polling thread there evaluates all subgroups in turn.

use squall_fabric::{Core, Fabric};

use super::active::{ActiveSubgroup, AnySubgroup, either};
use super::core::{GroupCore, GroupStage, PresentView};
use super::relays::Relays;
use super::{GroupApplication, GroupEnd};
use crate::membership::{Membership, MembershipState};
use crate::multicast::Deliver;
use crate::mutation;

/// With up to this many subgroups each evaluation looks at all.
const FEW: usize = 16;

/// Of more, it looks at this many idle ones: few, since a message waits for each such look.
const AT_ONCE: usize = 4;

/// A subgroup is idle after this many looks in a row without work: more than a runner polls before it sleeps, so that the
/// subgroup whose next message a member awaits is looked at until then.
const QUIET: u16 = 4096;

/// And a new one after this many.
const QUIET_AT_FIRST: u16 = 64;

/// What is known of each subgroup of a view, by its place.
#[derive(Debug, Default)]
pub(super) struct SubgroupRota {
    /// Looks in a row without work, up to [`QUIET`].
    quiet: Vec<u16>,
    /// The places of those that are not idle.
    awake: Vec<usize>,
    /// The next place of an idle one.
    next: usize,
    /// The place to be watched next.
    watched: usize,
    /// The next evaluation looks at all.
    looks_at_all: bool,
}

impl SubgroupRota {
    /// Begins with `count` subgroups, all awake.
    pub(super) fn new(count: usize) -> Self {
        Self {
            quiet: vec![QUIET - QUIET_AT_FIRST; count],
            awake: (0..count).collect(),
            next: 0,
            watched: 0,
            looks_at_all: false,
        }
    }

    /// Lets the next evaluation look at all.
    pub(super) fn look_at_all(&mut self) {
        self.looks_at_all = !mutant!(SleepUnlooked);
    }

    /// Returns whether an evaluation looks at some of the idle subgroups only.
    pub(super) const fn is_in_turn(&self) -> bool {
        self.quiet.len() > FEW
    }

    /// Returns the places of the subgroups that had work lately, or all of a few.
    pub(super) fn awake(&self) -> &[usize] {
        &self.awake
    }

    /// Takes the places whose turn it is to be watched for slow consumers, in no hurry; a view with few subgroups watches all.
    pub(super) fn watch(&mut self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.quiet.len(), self.watched);
        let looks = if self.is_in_turn() { FEW } else { count };
        self.watched = (first + looks) % count.max(1);
        (first..first + looks).map(move |place| place % count)
    }

    /// Takes the next place whose turn it is, among the idle ones.
    fn turn(&mut self) -> usize {
        let place = self.next;
        self.next = (place + 1) % self.quiet.len();
        place
    }

    fn is_idle(&self, place: usize) -> bool {
        self.quiet[place] >= QUIET
    }

    /// Notes a look at a subgroup that is awake; returns whether it stays so.
    fn stays_awake(&mut self, place: usize, worked: bool) -> bool {
        let quiet = &mut self.quiet[place];
        *quiet = if worked { 0 } else { *quiet + 1 };
        *quiet < QUIET
    }

    /// Notes a look at an idle subgroup.
    fn wake(&mut self, place: usize) {
        self.quiet[place] = 0;
        self.awake.push(place);
    }
}

impl<A: GroupApplication> GroupCore<A> {
    /// Evaluates the subgroups; returns the amount of work done.
    pub(super) fn poll_subgroups<F: Fabric>(&mut self, fabric: &mut F) -> usize {
        let mut work = self.successions.poll(&mut self.application);
        let GroupStage::Present(present) = &mut self.stage else { return 0 };
        // A view that ends needs all members.
        let is_open =
            matches!(present.membership.state(), MembershipState::Opening | MembershipState::Normal);
        if self.passage.stands_by() && is_open && !mutant!(TakePartEarly) {
            return work;
        }
        let view = present.membership.view();
        if !self.register.as_ref().is_none_or(|register| register.has_recorded(view)) {
            return work;
        }
        let found = if present.rota.is_in_turn() {
            self.look_in_turn(fabric)
        } else {
            Self::look_at_all(&mut self.relays, present, fabric)
        };
        match found {
            Ok(done) => work += done,
            Err(ended) => {
                self.end(ended);
                return work + 1;
            }
        }
        let GroupStage::Present(present) = &mut self.stage else { return work };
        let (done, culprit) = self.relays.advance(fabric, &mut present.subgroups);
        culprit.into_iter().for_each(|node| present.membership.suspect(node));
        work + done + self.poll_shards(fabric)
    }

    /// Looks at all subgroups, in their order.
    #[inline]
    fn look_at_all<F: Fabric>(
        relays: &mut Relays,
        present: &mut PresentView<A::Deliver>,
        fabric: &mut F,
    ) -> Result<usize, GroupEnd> {
        let mut work = 0;
        for active in &mut present.subgroups {
            work += look_at(relays, &present.membership, active, fabric)?;
        }
        Ok(work)
    }

    /// Looks at the subgroups whose turn it is, or at all.
    fn look_in_turn<F: Fabric>(&mut self, fabric: &mut F) -> Result<usize, GroupEnd> {
        let GroupStage::Present(PresentView { membership, subgroups, rota, .. }) = &mut self.stage else {
            return Ok(0);
        };
        let relays = &mut self.relays;
        let mut look = |place: usize| look_at(relays, membership, &mut subgroups[place], fabric);
        let mut work = 0;
        let mut awake = std::mem::take(&mut rota.awake);
        let mut outcome = Ok(());
        awake.retain(|place| {
            let done = match look(*place) {
                Ok(done) => done,
                Err(ended) => {
                    outcome = Err(ended);
                    0
                }
            };
            work += done;
            rota.stays_awake(*place, done > 0)
        });
        rota.awake = awake;
        outcome?;
        let all = std::mem::take(&mut rota.looks_at_all);
        let turns = if all { rota.quiet.len() } else { AT_ONCE };
        for _ in 0..if mutant!(ForgetIdle) { 0 } else { turns } {
            let place = rota.turn();
            if rota.is_idle(place) {
                let done = look(place)?;
                if done > 0 {
                    rota.wake(place);
                }
                work += done;
            }
        }
        Ok(work)
    }
}

/// Evaluates a subgroup.
#[inline]
fn look_at<F: Fabric, D: Deliver>(
    relays: &mut Relays,
    membership: &Membership,
    active: &mut ActiveSubgroup<D>,
    fabric: &mut F,
) -> Result<usize, GroupEnd> {
    let ActiveSubgroup { id, core, segment } = active;
    let work = either!(core, core => core.poll(fabric));
    either!(core, core => relays.take_bodies(fabric, membership.view(), segment.trims, *id, core));
    either!(core, core => core.failure()).map_or(Ok(work), |failure| Err(GroupEnd::Failed(*id, failure)))
}
