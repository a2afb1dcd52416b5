//! Virtual synchrony \[V1\]–\[V3\], \[V7\]: one sequence of views; who goes from one to the next has delivered the same in
//! it; what anybody delivered there, all who went on did; a sender's messages come once, in order, across views.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_protocols::group::{Placement, SubgroupId};
use squall_protocols::membership::View;
use squall_protocols::multicast::{DeliveryMode, Message};

use crate::payload;
use crate::run::Violation;

/// Bytes of a message before its contents: its number among the messages of its sender.
const NUMBER_BYTES: usize = 8;

/// What the whole group has installed and delivered.
#[derive(Debug)]
pub struct ViewHistory {
    seed: u64,
    message_max: usize,
    /// The longest message of a subgroup with large ones.
    longest: BTreeMap<SubgroupId, usize>,
    /// Views by id, as the first member has installed them.
    views: BTreeMap<u64, View>,
    /// Members of each subgroup in each view, and its mode.
    placements: BTreeMap<(u64, SubgroupId), (Vec<NodeId>, DeliveryMode)>,
    /// What was delivered in total order, by view and subgroup.
    histories: BTreeMap<(u64, SubgroupId), History>,
    /// How many messages each node has sent in each subgroup.
    sent: BTreeMap<(SubgroupId, NodeId), u64>,
    /// The number that each member expects next from each sender: member, subgroup, sender.
    next: BTreeMap<(NodeId, SubgroupId, NodeId), u64>,
    delivered: u64,
    /// How many views had the members of the one before.
    unchanged: usize,
}

/// One view of one subgroup.
#[derive(Debug, Default)]
struct History {
    /// Sender, number and sequence of each message.
    common: Vec<(NodeId, u64, u64)>,
    /// How far each member has come.
    reached: BTreeMap<NodeId, usize>,
    /// How much those who went on have delivered, and who was first.
    end: Option<(usize, NodeId)>,
}

fn fail(checker: &'static str, text: String) -> Result<(), Violation> {
    Err(Violation { checker, text })
}

impl ViewHistory {
    /// A checker for messages whose contents come from `seed`.
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

    /// Messages of a subgroup may be that long.
    pub fn allow(&mut self, id: SubgroupId, longest: usize) {
        self.longest.insert(id, longest);
    }

    /// What follows the number in a message, at most.
    fn contents_max(&self, id: SubgroupId) -> usize {
        self.longest.get(&id).copied().unwrap_or(self.message_max) - NUMBER_BYTES
    }

    /// A node has installed a view.
    ///
    /// # Errors
    /// If another node has installed another view of this number \[V1\].
    pub fn on_install(
        &mut self,
        node: NodeId,
        view: &View,
        placements: &[Placement],
    ) -> Result<(), Violation> {
        if !self.views.contains_key(&view.id) {
            let before = view.id.checked_sub(1).and_then(|before| self.views.get(&before));
            // That a member is leaving and stays for the sake of a state is a change, too.
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

    /// The length of the contents of a message.
    #[must_use]
    pub fn length(&self, id: SubgroupId, node: NodeId, number: u64) -> usize {
        NUMBER_BYTES + payload::length(self.seed, source(id, node), number, self.contents_max(id))
    }

    /// The number of the next message of `node`.
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

    /// `node` has sent its next message.
    pub fn on_send(&mut self, id: SubgroupId, node: NodeId) {
        *self.sent.entry((id, node)).or_default() += 1;
    }

    /// Checks a delivery.
    ///
    /// # Errors
    /// If it is not what the sender has sent next, or others have delivered something else at this place.
    pub fn on_delivery(
        &mut self,
        node: NodeId,
        id: SubgroupId,
        message: &Message<'_>,
    ) -> Result<(), Violation> {
        let Message { view, sender, node: from, index, sequence, bytes } = *message;
        let Some((members, mode)) = self.placements.get(&(view, id)) else {
            return fail("views", format!("{node} delivers in view {view}, which nobody has installed"));
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
            text: format!("[O3] {node} delivers, as index {index} of {sender} in {id}, what was never sent"),
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
        if mode == DeliveryMode::Atomic {
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
                format!("[V3] {node} delivers {place} messages in {key:?}, {first} went on with {end}");
            return fail("virtual synchrony", text);
        }
        Ok(())
    }

    /// `node` has delivered all that it will deliver in `view`, and goes on to a later one.
    ///
    /// # Errors
    /// If others went on with more or less \[V2\], or somebody has delivered more \[V3\].
    pub fn on_view_end(&mut self, node: NodeId, id: SubgroupId, view: u64) -> Result<(), Violation> {
        let history = self.histories.entry((view, id)).or_default();
        let reached = history.reached.get(&node).copied().unwrap_or(0);
        let (end, first) = *history.end.get_or_insert((reached, node));
        if reached != end {
            let text = format!(
                "[V2] {node} goes on from view {view} of {id} with {reached} messages, {first} with {end}"
            );
            return fail("virtual synchrony", text);
        }
        if let Some((other, more)) = history.reached.iter().find(|(_, reached)| **reached > end) {
            let text = format!(
                "[V3] {other} has delivered {more} messages in view {view} of {id}, {node} goes on with {end}"
            );
            return fail("virtual synchrony", text);
        }
        Ok(())
    }

    /// Checks that `node` has delivered all that `sender` has sent, from the first that it delivered on.
    ///
    /// # Errors
    /// If something is missing.
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

    /// All deliveries.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.delivered
    }

    /// How many messages of total order `node` has delivered.
    #[must_use]
    pub fn delivered_by(&self, node: NodeId) -> usize {
        self.histories.values().filter_map(|history| history.reached.get(&node)).sum()
    }

    /// Whether some view has had `node`: it is let in once, and comes back as another node.
    #[must_use]
    pub fn has_seen(&self, node: NodeId) -> bool {
        self.views.values().any(|view| view.rank(node).is_some())
    }

    /// How many views had the members of the one before, and as many that were leaving \[V12\].
    #[must_use]
    pub const fn unchanged(&self) -> usize {
        self.unchanged
    }

    /// How many views there were.
    #[must_use]
    pub fn count(&self) -> usize {
        self.views.len()
    }

    /// The number of a message, if `sender` has sent it as it is.
    fn number(&self, id: SubgroupId, sender: NodeId, bytes: &[u8]) -> Option<u64> {
        let (head, contents) = bytes.split_at_checked(NUMBER_BYTES)?;
        let number = u64::from_le_bytes(head.try_into().ok()?);
        let longest = self.contents_max(id);
        let is_it = number < self.sent(id, sender)
            && payload::matches(self.seed, source(id, sender), number, longest, contents);
        is_it.then_some(number)
    }
}

/// Names a sender of a subgroup for [`payload`].
fn source(id: SubgroupId, node: NodeId) -> usize {
    node.0 as usize * 16 + id.0 as usize
}
