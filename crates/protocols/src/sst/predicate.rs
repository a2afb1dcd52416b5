//! Named predicates and their triggers, evaluated in a fixed order (Derecho §3.2, Spindle §2.4, §3.4).

use squall_fabric::{Core, Event, Fabric};

use super::{Expression, Table};

/// What happens to a predicate that has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It is removed.
    Once,
    /// It fires at every evaluation in which it holds.
    WhileTrue,
    /// It fires when it begins to hold, and again after it has stopped holding.
    OnTransition,
}

/// What a predicate does when it fires: stores into the own row, or has an effect outside.
pub type Trigger = Box<dyn FnMut(&mut Table) + Send>;

struct Predicate {
    name: &'static str,
    repeat: Repeat,
    holds: Expression<bool>,
    trigger: Trigger,
    held: bool,
    fired: u64,
    done: bool,
}

/// A list of predicates with their triggers.
#[derive(Default)]
pub struct Predicates {
    list: Vec<Predicate>,
}

impl Predicates {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a predicate behind those that are there.
    pub fn add(
        &mut self,
        name: &'static str,
        repeat: Repeat,
        holds: Expression<bool>,
        trigger: impl FnMut(&mut Table) + Send + 'static,
    ) {
        let trigger = Box::new(trigger);
        self.list.push(Predicate { name, repeat, holds, trigger, held: false, fired: 0, done: false });
    }

    /// Evaluates all predicates once, in order. Returns how many fired that do not fire at every evaluation.
    pub fn evaluate(&mut self, table: &mut Table) -> usize {
        let mut fired = 0;
        for predicate in &mut self.list {
            if predicate.evaluate(table) && predicate.repeat != Repeat::WhileTrue {
                fired += 1;
            }
        }
        self.list.retain(|predicate| !predicate.done);
        fired
    }

    /// Names and how often each has fired, in order, without those that are done.
    pub fn fired(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.list.iter().map(|predicate| (predicate.name, predicate.fired))
    }
}

impl Predicate {
    fn evaluate(&mut self, table: &mut Table) -> bool {
        let holds = (self.holds)(table);
        let fires = holds && !(self.repeat == Repeat::OnTransition && self.held);
        self.held = holds;
        if fires {
            (self.trigger)(table);
            self.fired += 1;
            self.done = self.repeat == Repeat::Once;
        }
        fires
    }
}

/// A table with its predicates: the core that a runner drives.
pub struct Sst {
    /// The table.
    pub table: Table,
    /// Its predicates.
    pub predicates: Predicates,
}

impl<F: Fabric> Core<F> for Sst {
    fn handle_event(&mut self, _fabric: &mut F, event: &Event) {
        self.table.handle_event(event);
    }

    /// Evaluates the predicates, then posts what their triggers stored.
    fn poll(&mut self, fabric: &mut F) -> usize {
        if !self.table.is_ready() {
            return 0;
        }
        let fired = self.predicates.evaluate(&mut self.table);
        fired + self.table.flush(fabric)
    }
}
