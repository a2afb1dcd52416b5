//! The standing of a subgroup's members, as one of them sees it, for operators (Derecho §3.4: the slowest member determines what is
//! stable).

use super::{Deliver, Subgroup};

impl<D: Deliver> Subgroup<D> {
    /// Calls `each` with the rank of each member and the number of sequences, nulls included, by which it is behind the member that has
    /// received the most, as far as this member knows. The member that is behind the most determines what is stable. Without a
    /// total order, no member acknowledges what it receives, and there are no calls; nor are there before all have attached.
    pub fn lags(&self, mut each: impl FnMut(usize, u64)) {
        if !self.is_ready() || !self.settings.mode.is_ordered() {
            return;
        }
        let members = 0..self.members().len();
        let received = |rank| if rank == self.table.rank() { self.received } else { self.received_by(rank) };
        let most = members.clone().map(received).max().unwrap_or(0);
        members.for_each(|rank| each(rank, most - received(rank).min(most)));
    }

    /// Returns how many messages of this member are in its window, sent and not yet freed, and how many it has space for. `None` if
    /// this member does not send.
    #[must_use]
    pub fn window_use(&self) -> Option<(u64, u64)> {
        let (publisher, _) = self.publisher.as_ref()?;
        Some((publisher.outstanding(), self.settings.window as u64))
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::sim::{SimConfig, SimWorld};
    use squall_fabric::{Core as _, Duration, Fabric as _, MirrorKey, NodeId};

    use crate::multicast::{Message, Subgroup, SubgroupSettings, ViewStart};

    /// A member that does not evaluate its predicates is behind the others, until it does.
    #[test]
    fn a_member_that_has_stopped_is_behind() {
        let world = SimWorld::new(1, SimConfig::hardware(), 3);
        let mut fabrics = [0, 1, 2].map(|node| world.fabric(node));
        let nodes = [0, 1, 2].map(NodeId);
        let begin = |fabric: &mut _| {
            let (settings, start) = (SubgroupSettings::new(3, 8), ViewStart::default());
            Subgroup::new(fabric, MirrorKey(1), &nodes, settings, start, |_: Message<'_>| ())
        };
        let (mut groups, writers): (Vec<_>, Vec<_>) = fabrics.iter_mut().map(begin).unzip();
        let mut settle = |groups: &mut Vec<Subgroup<_>>, stopped: Option<u32>| {
            let end = fabrics[0].now() + Duration::from_millis(5);
            (0..3).for_each(|node| world.wake(node));
            while let Some(node) = world.next_poll(end) {
                let (group, fabric) = (&mut groups[node as usize], &mut fabrics[node as usize]);
                let mut events = Vec::new();
                fabric.poll(&mut |event| events.push(event));
                events.iter().for_each(|event| group.handle_event(fabric, event));
                let work = if stopped == Some(node) { 0 } else { group.poll(fabric) };
                world.rest(node, work > 0 || !events.is_empty(), None);
            }
        };
        let lags = |group: &Subgroup<_>| {
            let mut lags = Vec::new();
            group.lags(|rank, lag| lags.push((rank, lag)));
            lags
        };
        settle(&mut groups, None);
        assert_eq!(lags(&groups[0]), [(0, 0), (1, 0), (2, 0)]);
        let mut writer = writers.into_iter().next().flatten().expect("all members send");
        writer.send(1, |bytes| bytes[0] = 1).expect("there is space");
        settle(&mut groups, Some(2));
        for group in &groups[..2] {
            let seen = lags(group);
            assert!(seen[2].1 > 0 && seen[0].1 == 0, "{seen:?}");
        }
        assert_eq!(groups[0].window_use(), Some((1, groups[0].settings().window as u64)));
        settle(&mut groups, None);
        assert_eq!(lags(&groups[0]), [(0, 0), (1, 0), (2, 0)]);
        assert_eq!(groups[0].window_use().map(|(used, _)| used), Some(0));
    }
}
