//! The instants of the steps in which a view ends, at one member (Derecho §3.4 measures the same).

use squall_fabric::Instant;

/// A step of a member from one view to the next, in the usual order. Not every member takes every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViewChangeStep {
    /// It suspects a member of the view, for the first time.
    Suspected,
    /// It has stopped sending and acknowledging.
    Wedged,
    /// As leader, it has proposed how the view ends; the last instant counts, if it did so more than once.
    Proposed,
    /// It has echoed the leader's proposal; the last instant counts, if there were several leaders.
    Echoed,
    /// It knows how the view ends.
    Decided,
    /// It has delivered the trim and begun the next view.
    Installed,
    /// All members of the next view have attached each other's rows: messages flow.
    Ready,
}

impl ViewChangeStep {
    /// All steps, in order.
    pub const ALL: [Self; 7] = [
        Self::Suspected,
        Self::Wedged,
        Self::Proposed,
        Self::Echoed,
        Self::Decided,
        Self::Installed,
        Self::Ready,
    ];

    /// Returns the step's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Suspected => "suspected",
            Self::Wedged => "wedged",
            Self::Proposed => "proposed",
            Self::Echoed => "echoed",
            Self::Decided => "decided",
            Self::Installed => "installed",
            Self::Ready => "ready",
        }
    }
}

/// When each step was taken, by this member's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewChangeSteps([Option<Instant>; ViewChangeStep::ALL.len()]);

impl ViewChangeSteps {
    /// Returns when `step` was taken, if it was.
    #[must_use]
    pub const fn at(&self, step: ViewChangeStep) -> Option<Instant> {
        self.0[step as usize]
    }

    /// Returns the steps that were taken, in the order of their instants.
    #[must_use]
    pub fn taken(&self) -> Vec<(ViewChangeStep, Instant)> {
        let mut taken: Vec<_> =
            ViewChangeStep::ALL.iter().filter_map(|step| Some((*step, self.at(*step)?))).collect();
        taken.sort_by_key(|(_, at)| *at);
        taken
    }

    /// Notes that `step` was taken; the last time counts.
    pub const fn note(&mut self, step: ViewChangeStep, at: Instant) {
        self.0[step as usize] = Some(at);
    }

    /// Notes that `step` was taken; the first time counts.
    pub fn note_first(&mut self, step: ViewChangeStep, at: Instant) {
        self.0[step as usize].get_or_insert(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_in_the_order_of_their_instants() {
        let at = Instant::from_nanos;
        let mut steps = ViewChangeSteps::default();
        steps.note_first(ViewChangeStep::Wedged, at(5));
        steps.note_first(ViewChangeStep::Wedged, at(6));
        steps.note_first(ViewChangeStep::Suspected, at(7));
        steps.note(ViewChangeStep::Echoed, at(8));
        steps.note(ViewChangeStep::Echoed, at(9));
        assert_eq!(
            steps.taken(),
            [
                (ViewChangeStep::Wedged, at(5)),
                (ViewChangeStep::Suspected, at(7)),
                (ViewChangeStep::Echoed, at(9))
            ]
        );
        assert_eq!(steps.at(ViewChangeStep::Ready), None);
    }
}
