//! The metrics that name slow members.

use squall_protocols::group::HoldUp;

use super::catalogue::{MetricDescription, MetricKind, MetricSample, SUBGROUP, SUBGROUP_MEMBER, SampleValue};

const SUBGROUP_MEMBER_CAUSE: &[&str] = &["subgroup", "member", "cause"];

pub(super) const HELD_UP_SECONDS: MetricDescription = MetricDescription {
    name: "squall_held_up_seconds",
    kind: MetricKind::Gauge,
    labels: SUBGROUP_MEMBER,
    help: "For how long the member with this rank has delivered nothing, while this one waits for space in its window; there is no \
           sample while none holds it up",
    read: |scrape, each| {
        for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
            let held =
                subgroup.held_up_by.and_then(|(node, since)| Some((scrape.figures.rank(node)?, since)));
            if let Some((rank, since)) = held {
                let labels = vec![scrape.name(id), rank.to_string()];
                each(MetricSample { labels, value: SampleValue::Level(scrape.seconds_since(since)) });
            }
        }
    },
};

pub(super) const HELD_UP_RATIO: MetricDescription = MetricDescription {
    name: "squall_held_up_ratio",
    kind: MetricKind::Gauge,
    labels: SUBGROUP_MEMBER_CAUSE,
    help: "The part of the last second in which this member found no space in its window since the member with this rank is slow by \
           its consumer, its disk, its link or its processor; of the slowest one only",
    read: |scrape, each| {
        for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
            let hold_up =
                subgroup.hold_up.and_then(|found| Some((scrape.figures.rank(found.member)?, found)));
            if let Some((rank, HoldUp { cause, percent, .. })) = hold_up {
                let labels = vec![scrape.name(id), rank.to_string(), cause.to_string()];
                let ratio = f64::from(percent) / 100.0;
                each(MetricSample { labels, value: SampleValue::Level(ratio) });
            }
        }
    },
};

pub(super) const STANDSTILL: MetricDescription = MetricDescription {
    name: "squall_consumer_standstill_seconds",
    kind: MetricKind::Gauge,
    labels: SUBGROUP,
    help: "For how long this member's own application has taken nothing, although there are messages; 0 if it takes them",
    read: |scrape, each| {
        scrape.levels(each, |subgroup| {
            Some(subgroup.stood_still.map_or(0.0, |since| scrape.seconds_since(since)))
        });
    },
};
