//! The metrics of the shards of a group ([`crate::config::GenuineConfig`]).

use squall_protocols::genuine::ShardProgress;

use super::catalogue::{MetricDescription, MetricKind, MetricSample, SampleValue, Scrape};

const SHARD: &[&str] = &["shard"];

pub(super) const SENT: MetricDescription = MetricDescription {
    name: "squall_shards_sent_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "The messages that this member has sent to shards; one that is sent again counts once",
    read: |scrape, each| {
        if let Some(shards) = &scrape.figures.shards {
            each(MetricSample { labels: Vec::new(), value: SampleValue::Count(shards.sent) });
        }
    },
};

pub(super) const UNDER_WAY: MetricDescription = MetricDescription {
    name: "squall_shards_under_way",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Of these messages, at least as many are not delivered by all members of their shards yet; at the configured `window` sending \
           waits",
    read: |scrape, each| {
        if let Some(shards) = &scrape.figures.shards {
            each(MetricSample { labels: Vec::new(), value: SampleValue::Level(shards.under_way as f64) });
        }
    },
};

pub(super) const DELIVERED: MetricDescription = MetricDescription {
    name: "squall_shard_delivered_total",
    kind: MetricKind::Counter,
    labels: SHARD,
    help: "The messages that this member has delivered as a member of its shard; one that has joined hands them to its application when \
           that has the state",
    read: |scrape, each| own(scrape, each, |progress| SampleValue::Count(progress.delivered)),
};

pub(super) const PENDING: MetricDescription = MetricDescription {
    name: "squall_shard_pending",
    kind: MetricKind::Gauge,
    labels: SHARD,
    help: "The messages for its shard that this member knows and has not delivered",
    read: |scrape, each| own(scrape, each, |progress| SampleValue::Level(progress.pending as f64)),
};

pub(super) const CLOCK: MetricDescription = MetricDescription {
    name: "squall_shard_clock",
    kind: MetricKind::Gauge,
    labels: SHARD,
    help: "The latest timestamp of its shard that this member knows; each view begins again",
    read: |scrape, each| own(scrape, each, |progress| SampleValue::Level(progress.clock as f64)),
};

pub(super) const BEHIND: MetricDescription = MetricDescription {
    name: "squall_shard_behind",
    kind: MetricKind::Gauge,
    labels: &["shard", "member"],
    help: "How many messages of this member's shard wait here for the member with this rank, of this or another shard: for the \
           timestamp that it gives as leader, or if all timestamps are here, for its acknowledgement; there is no sample of members for which none waits",
    read: |scrape, each| {
        let Some((shards, (name, _))) =
            scrape.figures.shards.as_ref().and_then(|shards| Some((shards, shards.own.as_ref()?)))
        else {
            return;
        };
        for (node, count) in &shards.behind {
            if let Some(rank) = scrape.figures.rank(*node) {
                let labels = vec![name.clone(), rank.to_string()];
                each(MetricSample { labels, value: SampleValue::Level(*count as f64) });
            }
        }
    },
};

/// Passes a figure of the own shard.
fn own(
    scrape: &Scrape<'_>,
    each: &mut dyn FnMut(MetricSample),
    value: impl Fn(&ShardProgress) -> SampleValue,
) {
    if let Some((name, progress)) = scrape.figures.shards.as_ref().and_then(|shards| shards.own.as_ref()) {
        each(MetricSample { labels: vec![name.clone()], value: value(progress) });
    }
}
