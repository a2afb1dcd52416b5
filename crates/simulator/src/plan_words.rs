//! Plans in words, for people: what the adversary does, and sets of nodes.

use squall_fabric::Duration;
use squall_fabric::sim::Adversary;
use squall_protocols::multicast::{Batching, Carrier, DeliveryMode, LargeMessages};

/// Those of `count` nodes that `is_in` accepts, as in `nodes 0, 2 and 3`.
pub(crate) fn nodes(count: u32, is_in: impl Fn(u32) -> bool) -> String {
    let named: Vec<String> = (0..count).filter(|node| is_in(*node)).map(|node| node.to_string()).collect();
    match (&*named, named.len() == count as usize) {
        ([], _) => "no node".into(),
        (_, true) => "all nodes".into(),
        ([one], _) => format!("node {one}"),
        ([first @ .., last], _) => format!("nodes {} and {last}", first.join(", ")),
    }
}

/// When messages of a subgroup are delivered.
pub(crate) const fn mode(mode: DeliveryMode) -> &'static str {
    match mode {
        DeliveryMode::Atomic => "atomic",
        DeliveryMode::Durable => "durable",
        DeliveryMode::Unordered => "unordered",
        DeliveryMode::Raw => "raw",
    }
}

/// Which steps take all that there is at once.
pub(crate) fn batching(batching: Batching) -> String {
    let Batching { send, receive, delivery } = batching;
    let steps = [(send, "sends"), (receive, "acknowledgements"), (delivery, "deliveries")];
    let steps: Vec<&str> = steps.into_iter().filter_map(|(is_on, step)| is_on.then_some(step)).collect();
    if steps.is_empty() { "nothing in batches".into() } else { format!("{} in batches", steps.join(", ")) }
}

/// The bodies of large messages.
pub(crate) fn large(large: &LargeMessages) -> String {
    let LargeMessages { message_max, window, window_bytes, carrier } = large;
    let carrier = match carrier {
        Carrier::Pushed => "pushed to each member",
        Carrier::Relayed => "relayed from member to member",
    };
    format!(
        "large messages of up to {message_max} bytes, {window} of them and {window_bytes} bytes at a time, {carrier}"
    )
}

/// What the adversary does in this run, one habit on each line; what it does not do is left out.
pub(crate) fn adversary(adversary: &Adversary, indent: &str) -> String {
    let Adversary {
        delay_max,
        stall_per_mille,
        stall_max,
        scatter_per_mille,
        pieces_max,
        late_source_per_mille,
        late_done_max,
        late_notice_max,
        partial_poll_per_mille,
        glimpse_per_mille,
        poll_gap_max,
        clock_offset_max,
        clock_drift_max,
    } = adversary;
    let share = |per_mille: &u32| format!("{}.{} %", per_mille / 10, per_mille % 10);
    let is_some = |duration: &Duration| !duration.is_zero();
    let habits = [
        (
            is_some(delay_max),
            format!("connections delay by up to {delay_max:?}, and each post by up to as much again"),
        ),
        (
            *stall_per_mille > 0 && is_some(stall_max),
            format!(
                "{} of the posts stall for up to {stall_max:?}, and all behind them",
                share(stall_per_mille)
            ),
        ),
        (
            *scatter_per_mille > 0,
            format!(
                "{} of the writes land in up to {pieces_max} pieces, in any order",
                share(scatter_per_mille)
            ),
        ),
        (
            *late_source_per_mille > 0,
            format!("{} of the writes read their source when they land", share(late_source_per_mille)),
        ),
        (is_some(late_done_max), format!("completions are up to {late_done_max:?} late")),
        (
            is_some(late_notice_max),
            format!("breaks and revocations are noticed up to {late_notice_max:?} late"),
        ),
        (
            *partial_poll_per_mille > 0,
            format!("{} of the polls yield only some of the events", share(partial_poll_per_mille)),
        ),
        (
            *glimpse_per_mille > 0,
            format!("{} of the polls and pushes show a reader all that is stored", share(glimpse_per_mille)),
        ),
        (is_some(poll_gap_max), format!("nodes pause for up to {poll_gap_max:?} between two polls")),
        (is_some(clock_offset_max), format!("clocks differ by up to {clock_offset_max:?}")),
        (*clock_drift_max > 0, format!("clocks drift by up to {clock_drift_max} parts per million")),
    ];
    habits
        .into_iter()
        .filter(|(is_there, _)| *is_there)
        .map(|(_, habit)| format!("{indent}{habit}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_nodes_are_lists() {
        let texts = [0, 0b100, 0b101, 0b1101, 0b1111].map(|set| nodes(4, |i| set >> i & 1 == 1));
        assert_eq!(texts, ["no node", "node 2", "nodes 0 and 2", "nodes 0, 2 and 3", "all nodes"]);
        assert_eq!(nodes(70, |node| node % 64 == 5), "nodes 5 and 69");
    }

    #[test]
    fn only_what_the_adversary_does_is_said() {
        let calm = Adversary {
            delay_max: Duration::from_micros(3),
            scatter_per_mille: 15,
            pieces_max: 4,
            ..Adversary::default()
        };
        let text = adversary(&calm, "  ");
        assert!(
            text.contains("  connections delay by up to 3µs, and each post by up to as much again\n"),
            "{text}"
        );
        assert!(text.contains("  1.5 % of the writes land in up to 4 pieces, in any order\n"), "{text}");
        assert!(!text.contains("drift"), "{text}");
    }
}
