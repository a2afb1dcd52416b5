//! Virtual synchrony \[V1\]–\[V3\], \[V7\]: there is one sequence of views; all members that proceed from one view to
//! the next have delivered the same messages in it, including every message that any member has delivered in it; and
//! a sender's messages are delivered once and in order, across views.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_protocols::group::{Placement, SubgroupId};
use squall_protocols::membership::View;
use squall_protocols::multicast::{DeliveryMode, Message};

use crate::payload;
use crate::run::Violation;

/// The bytes of a message before its contents, which hold its number among the messages of its sender.
const NUMBER_BYTES: usize = 8;

/// The views and deliveries of the whole group.
#[derive(Debug)]
pub struct ViewHistory {
    seed: u64,
    message_max: usize,
    /// The maximum message length of subgroups with large messages.
    longest: BTreeMap<SubgroupId, usize>,
    /// The views by id, as the first member installed them.
    views: BTreeMap<u64, View>,
    /// The members of each subgroup in each view, and its mode.
    placements: BTreeMap<(u64, SubgroupId), (Vec<NodeId>, DeliveryMode)>,
    /// The deliveries in total order, by view and subgroup.
    histories: BTreeMap<(u64, SubgroupId), History>,
    /// The number of messages that each node has sent in each subgroup.
    sent: BTreeMap<(SubgroupId, NodeId), u64>,
    /// The message number that each member expects next from each sender, by member, subgroup and sender.
    next: BTreeMap<(NodeId, SubgroupId, NodeId), u64>,
    delivered: u64,
    /// The number of views with the same members as the previous one.
    unchanged: usize,
}

/// The deliveries in one view of one subgroup.
#[derive(Debug, Default)]
struct History {
    /// Sender, number and sequence of each message.
    common: Vec<(NodeId, u64, u64)>,
    /// The number of messages that each member has delivered.
    reached: BTreeMap<NodeId, usize>,
    /// The number of messages delivered by the members that proceeded, and the first of them.
    end: Option<(usize, NodeId)>,
}

fn fail(checker: &'static str, text: String) -> Result<(), Violation> {
    Err(Violation { checker, text })
}

impl ViewHistory {
    /// Returns a checker for messages whose contents derive from `seed`.
    #[must_use]
    pub fn new(seed: u64, message_max: usize) -> Self {
        Self {
            seed,
            message_max,
            longest: BTreeMap::new(),
            views: BTreeMap::new(),
            placements: BTreeMap::new(),
            histories: BTreeMap::new(),
            sent: BTreeMap::new(),
            next: BTreeMap::new(),
            delivered: 0,
            unchanged: 0,
        }
    }

    /// Allows messages of a subgroup to be as long as `longest`.
    pub fn allow(&mut self, id: SubgroupId, longest: usize) {
        self.longest.insert(id, longest);
    }

    /// Returns the maximum length of a message's contents, after its number.
    fn contents_max(&self, id: SubgroupId) -> usize {
        self.longest.get(&id).copied().unwrap_or(self.message_max) - NUMBER_BYTES
    }

    /// Records that a node has installed a view.
    ///
    /// # Errors
    /// If another node has installed a different view of this number \[V1\].
    pub fn on_install(
        &mut self,
        node: NodeId,
        view: &View,
        placements: &[Placement],
    ) -> Result<(), Violation> {
        if !self.views.contains_key(&view.id) {
            let before = view.id.checked_sub(1).and_then(|before| self.views.get(&before));
            // A leaving member that remains until a state is transferred is a change, too.
            let is_same = |before: &View| (&before.members, before.leaving) == (&view.members, view.leaving);
            self.unchanged += usize::from(before.is_some_and(is_same));
        }
        let known = self.views.entry(view.id).or_insert_with(|| view.clone());
        if known != view {
            return fail("views", format!("[V1] {node} installs {view}, others {known}"));
        }
        for placement in placements {
            let value = (placement.members.clone(), placement.settings.mode);
            let known = self.placements.entry((view.id, placement.id)).or_insert_with(|| value.clone());
            if *known != value {
                return fail("views", format!("[D6] {node} places {} differently in {view}", placement.id));
            }
        }
        Ok(())
    }

    /// Returns the length of a message.
    #[must_use]
    pub fn length(&self, id: SubgroupId, node: NodeId, number: u64) -> usize {
        NUMBER_BYTES + payload::length(self.seed, source(id, node), number, self.contents_max(id))
    }

    /// Returns the number of the next message of `node`.
    #[must_use]
    pub fn sent(&self, id: SubgroupId, node: NodeId) -> u64 {
        self.sent.get(&(id, node)).copied().unwrap_or(0)
    }

    /// Fills a message.
    pub fn fill(&self, id: SubgroupId, node: NodeId, number: u64, bytes: &mut [u8]) {
        let (head, contents) = bytes.split_at_mut(NUMBER_BYTES);
        head.copy_from_slice(&number.to_le_bytes());
        payload::fill(self.seed, source(id, node), number, contents);
    }

    /// Records that `node` has sent its next message.
    pub fn on_send(&mut self, id: SubgroupId, node: NodeId) {
        *self.sent.entry((id, node)).or_default() += 1;
    }

    /// Checks a delivery.
    ///
    /// # Errors
    /// If it is not the sender's next message, or others have delivered a different message at this position.
    pub fn on_delivery(
        &mut self,
        node: NodeId,
        id: SubgroupId,
        message: &Message<'_>,
    ) -> Result<(), Violation> {
        let Message { view, sender, node: from, index, sequence, bytes } = *message;
        let Some((members, mode)) = self.placements.get(&(view, id)) else {
            return fail("views", format!("{node} delivers in view {view}, which no member has installed"));
        };
        let (sender, mode) = (members[sender], *mode);
        if from != sender {
            return fail(
                "views",
                format!("{node} delivers a message of {sender} in view {view} as one of {from}"),
            );
        }
        let number = self.number(id, sender, bytes).ok_or_else(|| Violation {
            checker: "contents",
            text: format!(
                "[O3] {node} delivers, as index {index} of {sender} in {id}, a message that was never sent"
            ),
        })?;
        let next = self.next.entry((node, id, sender)).or_insert(number);
        let fits = if mode == DeliveryMode::Raw { number >= *next } else { number == *next };
        if !fits {
            let text =
                format!("[V7] {node} delivers message {number} of {sender} in {id}, view {view}, not {next}");
            return fail("contents", text);
        }
        *next = number + 1;
        self.delivered += 1;
        if mode.is_ordered() {
            self.check_order(node, (view, id), (sender, number, sequence))?;
        }
        Ok(())
    }

    fn check_order(
        &mut self,
        node: NodeId,
        key: (u64, SubgroupId),
        this: (NodeId, u64, u64),
    ) -> Result<(), Violation> {
        let history = self.histories.entry(key).or_default();
        let place = history.reached.entry(node).or_default();
        *place += 1;
        let place = *place;
        match history.common.get(place - 1) {
            Some(other) if *other != this => {
                let text =
                    format!("[O1] {node} delivers {this:?} at place {place} of {key:?}, others {other:?}");
                return fail("order", text);
            }
            Some(_) => {}
            None => history.common.push(this),
        }
        if let Some((end, first)) = history.end.filter(|(end, _)| place > *end) {
            let text =
                format!("[V3] {node} delivers {place} messages in {key:?}, but {first} proceeded with {end}");
            return fail("virtual synchrony", text);
        }
        Ok(())
    }

    /// Records that `node` has delivered everything that it will deliver in `view`, and proceeds to a later one.
    ///
    /// # Errors
    /// If others proceeded with more or fewer messages \[V2\], or a member has delivered more \[V3\].
    pub fn on_view_end(&mut self, node: NodeId, id: SubgroupId, view: u64) -> Result<(), Violation> {
        let history = self.histories.entry((view, id)).or_default();
        let reached = history.reached.get(&node).copied().unwrap_or(0);
        let (end, first) = *history.end.get_or_insert((reached, node));
        if reached != end {
            let text = format!(
                "[V2] {node} proceeds from view {view} of {id} with {reached} messages, but {first} with {end}"
            );
            return fail("virtual synchrony", text);
        }
        if let Some((other, more)) = history.reached.iter().find(|(_, reached)| **reached > end) {
            let text = format!(
                "[V3] {other} has delivered {more} messages in view {view} of {id}, but {node} proceeds with {end}"
            );
            return fail("virtual synchrony", text);
        }
        Ok(())
    }

    /// Checks that `node` has delivered every message that `sender` has sent since the first one that `node`
    /// delivered.
    ///
    /// # Errors
    /// If a message is missing.
    pub fn check_complete(
        &self,
        node: NodeId,
        id: SubgroupId,
        sender: NodeId,
        all: bool,
    ) -> Result<(), Violation> {
        let sent = self.sent(id, sender);
        match self.next.get(&(node, id, sender)) {
            Some(next) if *next != sent => fail(
                "liveness",
                format!("[V7] {node} has delivered {next} of {sent} messages of {sender} in {id}"),
            ),
            None if all && sent > 0 => fail(
                "liveness",
                format!("[V7] {node} has delivered none of {sent} messages of {sender} in {id}"),
            ),
            _ => Ok(()),
        }
    }

    /// Returns the members of a subgroup in a view, if it is durable.
    #[must_use]
    pub fn durable_members(&self, view: u64, id: SubgroupId) -> Option<&[NodeId]> {
        let (members, mode) = self.placements.get(&(view, id))?;
        (*mode == DeliveryMode::Durable).then_some(members)
    }

    /// Returns the number of all deliveries.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.delivered
    }

    /// Returns the number of totally ordered messages that `node` has delivered.
    #[must_use]
    pub fn delivered_by(&self, node: NodeId) -> usize {
        self.histories.values().filter_map(|history| history.reached.get(&node)).sum()
    }

    /// Returns the number of views with the same members, and the same leaving members, as the previous view \[V12\].
    #[must_use]
    pub const fn unchanged(&self) -> usize {
        self.unchanged
    }

    /// Returns the id of the latest view that any node has installed.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.views.last_key_value().map(|(id, _)| *id)
    }

    /// Returns the number of views.
    #[must_use]
    pub fn count(&self) -> usize {
        self.views.len()
    }

    /// Returns the number of a message, if `sender` has sent exactly this message.
    fn number(&self, id: SubgroupId, sender: NodeId, bytes: &[u8]) -> Option<u64> {
        let (head, contents) = bytes.split_at_checked(NUMBER_BYTES)?;
        let number = u64::from_le_bytes(head.try_into().ok()?);
        let longest = self.contents_max(id);
        let is_it = number < self.sent(id, sender)
            && payload::matches(self.seed, source(id, sender), number, longest, contents);
        is_it.then_some(number)
    }
}

/// Returns the number of a sender of a subgroup for [`payload`].
fn source(id: SubgroupId, node: NodeId) -> usize {
    node.0 as usize * 16 + id.0 as usize
}
