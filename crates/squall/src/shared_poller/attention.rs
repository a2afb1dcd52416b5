//! Which thread polls a node that an application's threads share: decisions only, without threads and without a clock of its own.
//!
//! A thread that waits for something polls meanwhile: it has the *turn*. What arrives then is found by the thread that wants it, and no thread
//! has to be woken. The *standby* thread polls while no thread has the turn. To wake it at the end of each turn would cost what the turn
//! saves: mostly the next one begins at once. So it looks after a while whether there was another, and polls if there was none. If that
//! happens, the end of the next turn wakes it, until turns follow each other quickly again.
//!
//! **Invariants.** At most one thread has the turn. While none has, the standby thread polls, or is asleep as a node is, or looks again within
//! [`GRACE`]: so the node is never left alone for longer than two looks, and what is sent meanwhile ends that at once, unless it is
//! one of many messages whose sender takes the turn every so often ([`Attention::begin_visit`]). What this decides reaches
//! the standby thread by a call, which it cannot miss ([`turns`](super::turns)).
//!
//! `Deviation:` (Spindle §2.4) one polling thread there evaluates everything; here it is one thread at a time.

use std::time::{Duration, Instant};

/// Which thread polls.
#[derive(Debug)]
pub(super) struct Attention {
    /// Whether a thread has the turn.
    is_led: bool,
    standby: Standby,
    /// How many turns there were, and how many the standby thread has noticed.
    turns: u64,
    noticed: u64,
    /// Whether turns follow each other quickly.
    returns_soon: bool,
    /// When the last turn ended, if they do not.
    ended_at: Option<Instant>,
    /// Brief turns since a thread last waited.
    brief: u32,
}

/// What the standby thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standby {
    /// It polls, unless a thread has the turn.
    Polling,
    /// It sleeps until the node has something to do, which it has asked its peers to say.
    Asleep,
    /// It sleeps for [`GRACE`].
    Watching,
    /// It sleeps until the turn ends.
    Resting,
}

impl Attention {
    pub(super) const fn new() -> Self {
        let standby = Standby::Polling;
        Self { is_led: false, standby, turns: 0, noticed: 0, returns_soon: true, ended_at: None, brief: 0 }
    }

    pub(super) const fn is_led(&self) -> bool {
        self.is_led
    }

    pub(super) const fn standby(&self) -> Standby {
        self.standby
    }

    /// Returns whether no thread will poll for a while.
    pub(super) fn is_unattended(&self) -> bool {
        !self.is_led && self.standby == Standby::Watching
    }

    /// Returns whether a thread that has something to send may have the turn for that.
    pub(super) fn may_be_brief(&self) -> bool {
        self.is_unattended() && self.brief < BRIEF_MAX
    }

    /// Gives the turn to a thread that waits, or that polls in the place of the standby thread; returns false if another one has it.
    pub(super) fn begin(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.is_led {
            return false;
        }
        self.brief = 0;
        self.take(now);
        true
    }

    /// Gives the turn to a thread that has something to send, if that is better than to leave it to another one: a thread that sends much
    /// has better use for its time.
    pub(super) fn begin_briefly(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let may = self.may_be_brief();
        if may {
            self.brief += 1;
            self.take(now);
        }
        may
    }

    /// Gives the turn to a thread that sends or takes much, for one poll, if no thread polls.
    pub(super) fn begin_visit(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let may = self.is_unattended();
        if may {
            self.take(now);
        }
        may
    }

    fn take(&mut self, now: impl FnOnce() -> Instant) {
        self.is_led = true;
        self.turns += 1;
        if let Some(ended_at) = self.ended_at {
            self.returns_soon = now().saturating_duration_since(ended_at) < GRACE;
            self.ended_at = None;
        }
    }

    /// Ends the turn; returns whether to call the standby thread.
    #[must_use]
    pub(super) fn end(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.is_led = false;
        if !self.returns_soon {
            self.ended_at = Some(now());
        }
        let next = if self.returns_soon { Standby::Watching } else { Standby::Polling };
        match self.standby {
            Standby::Polling => false,
            Standby::Watching if self.returns_soon => false,
            Standby::Watching | Standby::Resting | Standby::Asleep => self.call(next),
        }
    }

    /// Lets the standby thread poll, if no thread does: there is something to send. Returns whether to call it.
    #[must_use]
    pub(super) fn attend(&mut self) -> bool {
        self.is_unattended() && self.call(Standby::Polling)
    }

    /// Decides what the standby thread does when it has been called, which it has to be.
    const fn call(&mut self, next: Standby) -> bool {
        self.standby = next;
        self.noticed = self.turns;
        true
    }

    /// The standby thread stops polling, since a thread has the turn.
    pub(super) const fn give_way(&mut self) {
        self.standby = Standby::Watching;
        self.noticed = self.turns;
    }

    /// The standby thread is about to sleep as a node does; returns whether it may.
    pub(super) const fn fall_asleep(&mut self) -> bool {
        if self.is_led {
            self.give_way();
        } else {
            self.standby = Standby::Asleep;
        }
        !self.is_led
    }

    /// The standby thread has slept as a node does.
    pub(super) fn wake_up(&mut self) {
        if self.standby == Standby::Asleep {
            self.standby = Standby::Polling;
            if self.is_led {
                self.give_way();
            }
        }
    }

    /// The standby thread has watched for [`GRACE`].
    pub(super) fn watched(&mut self) {
        if self.standby != Standby::Watching {
            return;
        }
        if self.is_led {
            self.standby = Standby::Resting;
        } else if self.turns == self.noticed {
            self.standby = Standby::Polling;
            self.returns_soon = false;
        }
        self.noticed = self.turns;
    }
}

/// What the node is left alone between two turns at most, apart from the scheduler.
pub(super) const GRACE: Duration = Duration::from_micros(200);

/// How often a thread sends by itself before it waits for something.
const BRIEF_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> impl FnOnce() -> Instant {
        static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let origin = *ORIGIN.get_or_init(Instant::now);
        move || origin + Duration::from_micros(micros)
    }

    /// Returns the state in which a thread has had the turn, and the standby thread has seen that.
    fn watching() -> Attention {
        let mut attention = Attention::new();
        assert!(attention.begin(at(0)));
        attention.give_way();
        assert!(!attention.end(at(0)));
        attention
    }

    #[test]
    fn quick_turns_wake_no_thread() {
        let mut attention = watching();
        for _ in 0..100 {
            assert!(attention.begin(at(0)) && !attention.begin(at(0)), "one thread at a time");
            assert!(!attention.end(at(0)));
            attention.watched();
            assert!(attention.is_unattended(), "there was a turn meanwhile");
        }
    }

    /// The node is polled at the latest after two looks, and after that without delay, until turns are quick again.
    #[test]
    fn a_thread_that_does_not_come_back_is_replaced() {
        let mut attention = watching();
        assert!(attention.begin(at(0)));
        assert!(!attention.end(at(0)));
        attention.watched();
        attention.watched();
        assert_eq!(attention.standby(), Standby::Polling);
        for round in 1..4 {
            assert!(attention.begin(at(round * 1000)));
            attention.give_way();
            assert!(attention.end(at(round * 1000)), "it waits no longer");
            assert_eq!(attention.standby(), Standby::Polling);
        }
        assert!(attention.begin(at(3001)));
        attention.give_way();
        assert!(!attention.end(at(3002)), "turns are quick again");
    }

    /// A thread that waits long costs the standby thread nothing, and the end of its turn is noticed.
    #[test]
    fn a_long_turn_lets_the_standby_thread_rest() {
        let mut attention = watching();
        assert!(attention.begin(at(0)));
        attention.watched();
        assert_eq!(attention.standby(), Standby::Resting);
        assert!(attention.end(at(0)));
        assert_eq!(attention.standby(), Standby::Watching);
    }

    #[test]
    fn a_turn_that_begins_while_the_standby_thread_sleeps_ends_with_a_call() {
        let mut attention = Attention::new();
        assert!(attention.fall_asleep() && attention.begin(at(0)));
        assert!(attention.end(at(0)));
        attention.wake_up();
        assert_eq!(attention.standby(), Standby::Watching);
        // It may also wake by itself during the turn.
        let mut attention = Attention::new();
        assert!(attention.fall_asleep() && attention.begin(at(0)));
        attention.wake_up();
        assert_eq!((attention.standby(), attention.end(at(0))), (Standby::Watching, false));
        assert!(attention.begin(at(0)) && !attention.fall_asleep(), "another thread polls");
    }

    /// A thread that sends much polls every so often: meanwhile the standby thread is not woken, and after it the node is not left alone.
    #[test]
    fn visits_replace_the_standby_thread_as_long_as_they_go_on() {
        let mut attention = Attention::new();
        assert!(!attention.begin_visit(at(0)), "the standby thread polls");
        assert!(attention.fall_asleep() && !attention.begin_visit(at(0)), "it is woken by what comes");
        let mut attention = watching();
        for _ in 0..100 {
            assert!(attention.begin_visit(at(0)) && !attention.begin_visit(at(0)), "one thread at a time");
            attention.watched();
            assert_eq!(attention.standby(), Standby::Resting);
            assert!(attention.end(at(0)));
            assert!(attention.begin_visit(at(0)));
            assert!(!attention.end(at(0)));
            attention.watched();
            assert!(attention.is_unattended());
        }
        attention.watched();
        assert_eq!(attention.standby(), Standby::Polling, "there was no visit for a whole look");
    }

    /// What is sent while no thread polls does not wait for the next look.
    #[test]
    fn what_is_sent_is_attended_to() {
        let mut attention = watching();
        assert_eq!((attention.attend(), attention.standby()), (true, Standby::Polling));
        assert!(!attention.attend());
        assert!(!attention.may_be_brief(), "it is polled already");
    }

    #[test]
    fn a_thread_that_sends_much_leaves_the_polling_to_another() {
        let mut attention = watching();
        for _ in 0..BRIEF_MAX {
            assert!(attention.begin_briefly(at(0)));
            assert!(!attention.end(at(0)));
        }
        assert!(!attention.begin_briefly(at(0)));
        assert!(attention.begin(at(0)), "it may wait");
        assert!(!attention.end(at(0)));
        assert!(attention.begin_briefly(at(0)), "and send again");
    }
}
