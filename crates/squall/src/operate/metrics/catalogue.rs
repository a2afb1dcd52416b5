//! All metrics of a member, in one table: what `/metrics` shows, and what docs/metrics.md lists.

use std::fmt::Write as _;
use std::time::Instant;

use squall_fabric::DurationHistogram;
use squall_log::WriteTally;
use squall_transports::PeerTraffic;
use squall_transports::composite::PeerTransport;

use super::board::{FiguresBoard, MemberFigures, SubgroupFigures};
use super::{shards, slow};

/// A metric of a member.
///
/// ```
/// use squall::metrics::METRICS;
///
/// let latency = METRICS.iter().find(|metric| metric.name == "squall_delivery_latency_seconds");
/// assert_eq!(latency.map(|metric| metric.labels), Some(&["subgroup"][..]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MetricDescription {
    /// Its name, with its unit, and `_total` if it is a counter.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The labels of its samples, besides those that Prometheus adds.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
    /// Calls the function with each sample.
    pub(super) read: fn(&Scrape<'_>, &mut dyn FnMut(MetricSample)),
}

/// The kind of a metric.
///
/// ```
/// use squall::metrics::{METRICS, MetricKind};
///
/// let counters = METRICS.iter().filter(|metric| metric.kind == MetricKind::Counter);
/// assert!(counters.map(|metric| metric.name).all(|name| name.ends_with("_total")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts durations by their length.
    Histogram,
}

impl MetricKind {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A value of a metric, with the values of its labels.
#[derive(Debug)]
pub(super) struct MetricSample {
    pub(super) labels: Vec<String>,
    pub(super) value: SampleValue,
}

#[derive(Debug)]
pub(super) enum SampleValue {
    Count(u64),
    /// The value of a counter of seconds.
    Elapsed(f64),
    Level(f64),
    Durations {
        seconds: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

impl SampleValue {
    fn of(times: &DurationHistogram) -> Self {
        let buckets = times.buckets().map(|(limit, count)| (limit.as_secs_f64(), count)).collect();
        Self::Durations { seconds: times.sum().as_secs_f64(), count: times.count(), buckets }
    }
}

/// What is known of a member when it is asked.
#[derive(Debug)]
pub(super) struct Scrape<'a> {
    board: &'a FiguresBoard,
    pub(super) figures: MemberFigures,
    has_ended: bool,
    now: Instant,
}

impl<'a> Scrape<'a> {
    pub(super) fn of(board: &'a FiguresBoard) -> Self {
        let (figures, has_ended) = (board.read(), board.failure().is_some());
        Self { board, figures, has_ended, now: Instant::now() }
    }

    /// Passes the number of each subgroup that `count` finds.
    fn counts(&self, each: &mut dyn FnMut(MetricSample), count: impl Fn(usize, &SubgroupFigures) -> u64) {
        for (id, subgroup) in self.figures.subgroups.iter().enumerate() {
            each(MetricSample {
                labels: vec![self.name(id)],
                value: SampleValue::Count(count(id, subgroup)),
            });
        }
    }

    /// Passes the number of each subgroup for which `level` finds one.
    pub(super) fn levels(
        &self,
        each: &mut dyn FnMut(MetricSample),
        level: impl Fn(&SubgroupFigures) -> Option<f64>,
    ) {
        for (id, subgroup) in self.figures.subgroups.iter().enumerate() {
            if let Some(level) = level(subgroup) {
                each(MetricSample { labels: vec![self.name(id)], value: SampleValue::Level(level) });
            }
        }
    }

    /// Passes a number of the log, if there is one.
    fn logged(&self, each: &mut dyn FnMut(MetricSample), count: impl Fn(&WriteTally) -> u64) {
        if let Some(tally) = &self.figures.log {
            each(MetricSample { labels: Vec::new(), value: SampleValue::Count(count(tally)) });
        }
    }

    pub(super) fn name(&self, id: usize) -> String {
        self.board.names().get(id).cloned().unwrap_or_default()
    }

    pub(super) fn seconds_since(&self, since: Instant) -> f64 {
        self.now.saturating_duration_since(since).as_secs_f64()
    }
}

/// Returns a transport's name in the configuration.
const fn key(transport: PeerTransport) -> &'static str {
    match transport {
        PeerTransport::Shm => "shm",
        PeerTransport::Verbs => "verbs",
        PeerTransport::Tcp => "tcp",
    }
}

/// A sample without labels.
fn one(each: &mut dyn FnMut(MetricSample), level: impl Into<f64>) {
    each(MetricSample { labels: Vec::new(), value: SampleValue::Level(level.into()) });
}

pub(super) const SUBGROUP: &[&str] = &["subgroup"];
pub(super) const SUBGROUP_MEMBER: &[&str] = &["subgroup", "member"];
const SUBGROUP_STAGE: &[&str] = &["subgroup", "stage"];
const MEMBER_TRAFFIC: &[&str] = &["member", "transport", "direction"];

/// All metrics of a member.
pub const METRICS: [MetricDescription; 32] = [
    MetricDescription {
        name: "squall_ready",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "1 if this member is in a view in which messages flow, else 0",
        read: |scrape, each| one(each, u8::from(scrape.figures.ready && !scrape.has_ended)),
    },
    MetricDescription {
        name: "squall_wedged",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "1 if the view is ending, so that nothing is sent in it any more, else 0",
        read: |scrape, each| one(each, u8::from(scrape.figures.wedged)),
    },
    MetricDescription {
        name: "squall_without_majority",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "1 if this member hears no majority of its view, and waits for one with its state, else 0",
        read: |scrape, each| one(each, u8::from(scrape.figures.lacks_majority && !scrape.has_ended)),
    },
    MetricDescription {
        name: "squall_view_number",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "The number of the view",
        read: |scrape, each| one(each, scrape.figures.view as f64),
    },
    MetricDescription {
        name: "squall_members",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "The number of members in the view",
        read: |scrape, each| one(each, scrape.figures.members.len() as f64),
    },
    MetricDescription {
        name: "squall_view_changes_total",
        kind: MetricKind::Counter,
        labels: &[],
        help: "The view changes that this member has gone through",
        read: |scrape, each| {
            let value = SampleValue::Count(scrape.figures.changes.count);
            each(MetricSample { labels: Vec::new(), value });
        },
    },
    MetricDescription {
        name: "squall_view_change_seconds",
        kind: MetricKind::Histogram,
        labels: &[],
        help: "How long view changes took here, from the first suspicion or the end of sending until messages flowed again",
        read: |scrape, each| {
            let changes = &scrape.figures.changes;
            let buckets = changes.buckets.to_vec();
            let value = SampleValue::Durations { seconds: changes.seconds, count: changes.count, buckets };
            each(MetricSample { labels: Vec::new(), value });
        },
    },
    MetricDescription {
        name: "squall_sent_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "The messages that this member has sent; one that a view change makes it send again counts again",
        read: |scrape, each| scrape.counts(each, |_, subgroup| subgroup.totals.messages_sent),
    },
    MetricDescription {
        name: "squall_nulls_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "The nulls that this member has sent in the place of messages, so that those of others need not wait",
        read: |scrape, each| scrape.counts(each, |_, subgroup| subgroup.totals.nulls_sent),
    },
    MetricDescription {
        name: "squall_received_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "The messages and nulls of all senders that this member has acknowledged; 0 in subgroups without a total order",
        read: |scrape, each| scrape.counts(each, |_, subgroup| subgroup.totals.sequences_received),
    },
    MetricDescription {
        name: "squall_delivered_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "The messages that this member's application has got",
        read: |scrape, each| {
            scrape
                .counts(each, |id, subgroup| subgroup.totals.messages_delivered + scrape.board.pulled(id).0);
        },
    },
    MetricDescription {
        name: "squall_delivered_bytes_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "The bytes of these messages",
        read: |scrape, each| {
            scrape.counts(each, |id, subgroup| subgroup.totals.bytes_delivered + scrape.board.pulled(id).1);
        },
    },
    MetricDescription {
        name: "squall_batches_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP_STAGE,
        help: "How often this member has sent (`send`), acknowledged (`receive`) or delivered (`deliver`) messages; how many of them at \
               once is the rate of the messages divided by this one. `receive` counts nulls like messages, and is 0 in subgroups \
               without a total order; a delivery of nulls alone counts in `deliver`",
        read: |scrape, each| {
            for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
                let totals = &subgroup.totals;
                for (stage, count) in [
                    ("send", totals.send_batches),
                    ("receive", totals.receive_batches),
                    ("deliver", totals.delivery_batches),
                ] {
                    each(MetricSample {
                        labels: vec![scrape.name(id), stage.into()],
                        value: SampleValue::Count(count),
                    });
                }
            }
        },
    },
    MetricDescription {
        name: "squall_delivery_latency_seconds",
        kind: MetricKind::Histogram,
        labels: SUBGROUP,
        help: "How long this member's own messages took, from being sent until this member delivered them, or its application could pull \
               them: of at most a hundred in a second, chosen evenly; not of those that a view change makes it send again, and not in \
               subgroups without a total order",
        read: |scrape, each| {
            for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
                let times = &subgroup.times.latencies;
                if times.count() > 0 {
                    each(MetricSample { labels: vec![scrape.name(id)], value: SampleValue::of(times) });
                }
            }
        },
    },
    MetricDescription {
        name: "squall_stability_lag",
        kind: MetricKind::Gauge,
        labels: SUBGROUP_MEMBER,
        help: "By how many messages and nulls each member, named by its rank, is behind the one that has received the most, as far as \
               this member knows; the greatest lag is what deliveries wait for",
        read: |scrape, each| {
            for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
                for (node, lag) in &subgroup.lags {
                    if let Some(rank) = scrape.figures.rank(*node) {
                        let labels = vec![scrape.name(id), rank.to_string()];
                        each(MetricSample { labels, value: SampleValue::Level(*lag as f64) });
                    }
                }
            }
        },
    },
    MetricDescription {
        name: "squall_window_used_ratio",
        kind: MetricKind::Gauge,
        labels: SUBGROUP,
        help: "The part of this member's window that messages take which some member has not delivered yet; at 1 sending waits",
        read: |scrape, each| {
            scrape.levels(each, |subgroup| {
                subgroup.window.map(|(used, size)| used as f64 / size.max(1) as f64)
            });
        },
    },
    MetricDescription {
        name: "squall_window_full_seconds_total",
        kind: MetricKind::Counter,
        labels: SUBGROUP,
        help: "For how long this member's application found no space in its window, so that sending waited: estimated, as the window is \
               looked at a hundred times in a second at most. There is no sample where this member does not send",
        read: |scrape, each| {
            for (id, subgroup) in scrape.figures.subgroups.iter().enumerate() {
                let full = subgroup.times.full.as_secs_f64();
                if subgroup.window.is_some() || full > 0.0 {
                    each(MetricSample { labels: vec![scrape.name(id)], value: SampleValue::Elapsed(full) });
                }
            }
        },
    },
    slow::HELD_UP_SECONDS,
    slow::HELD_UP_RATIO,
    slow::STANDSTILL,
    shards::SENT,
    shards::UNDER_WAY,
    shards::DELIVERED,
    shards::PENDING,
    shards::CLOCK,
    shards::BEHIND,
    MetricDescription {
        name: "squall_log_unpersisted",
        kind: MetricKind::Gauge,
        labels: SUBGROUP,
        help: "The messages and nulls of a durable subgroup that this member has received and that are not on its disk yet",
        read: |scrape, each| {
            scrape.levels(each, |subgroup| subgroup.unpersisted.map(|unpersisted| unpersisted as f64));
        },
    },
    MetricDescription {
        name: "squall_log_write_seconds",
        kind: MetricKind::Histogram,
        labels: &[],
        help: "How long the writes of the log of all durable subgroups took, each until its bytes were on the disk; one write has the \
               messages that came during the one before it",
        read: |scrape, each| {
            if let Some(tally) = &scrape.figures.log {
                each(MetricSample { labels: Vec::new(), value: SampleValue::of(&tally.times) });
            }
        },
    },
    MetricDescription {
        name: "squall_log_frames_total",
        kind: MetricKind::Counter,
        labels: &[],
        help: "The frames that the log of all durable subgroups has on the disk since this member was started; each was one write",
        read: |scrape, each| scrape.logged(each, |tally| tally.frames),
    },
    MetricDescription {
        name: "squall_log_bytes_total",
        kind: MetricKind::Counter,
        labels: &[],
        help: "The bytes of these frames: messages, headers, and what fills blocks of the disk; without checkpoints, and without the \
               zeros that new segments begin with",
        read: |scrape, each| scrape.logged(each, |tally| tally.bytes),
    },
    MetricDescription {
        name: "squall_transport_bytes_total",
        kind: MetricKind::Counter,
        labels: MEMBER_TRAFFIC,
        help: "The bytes that were `sent` to each other member, named by its rank, and `received` from it, headers included, by the \
               transport of the group: `tcp`, or `verbs`, of which only `sent` is known. There are no samples for members that share \
               memory with this one, to which nothing is carried; streams, as states and external clients use them, do not count",
        read: |scrape, each| {
            for PeerTraffic { peer, transport, sent, received } in &scrape.figures.traffic {
                let Some(rank) = scrape.figures.rank(*peer) else { continue };
                let directions = [("sent", Some(*sent)), ("received", *received)];
                for (direction, count) in
                    directions.into_iter().filter_map(|(name, count)| Some((name, count?)))
                {
                    let labels = vec![rank.to_string(), key(*transport).into(), direction.into()];
                    each(MetricSample { labels, value: SampleValue::Count(count) });
                }
            }
        },
    },
    MetricDescription {
        name: "squall_figures_age_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        help: "How old these figures are: the polling thread writes them after it has worked, and rests while nothing happens; there is \
               no sample before the member has joined",
        read: |scrape, each| {
            if let Some(written) = scrape.figures.written {
                one(each, scrape.seconds_since(written));
            }
        },
    },
];

/// Returns the page docs/metrics.md.
///
/// ```
/// let table = squall::metrics::reference();
/// assert!(table.contains("| `squall_view_number` | gauge |"));
/// ```
#[must_use]
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    for MetricDescription { name, kind, labels, help, .. } in METRICS {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let row = format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "));
        writeln!(text, "{row}").expect("a String takes all");
    }
    text + TAIL
}

const HEAD: &str = "# Metrics

A member whose configuration has an address for them answers there over HTTP ([all keys](configuration.md#metrics)):
```toml
[metrics]
listen = \"127.0.0.1:9464\"      # or squall node --metrics 127.0.0.1:9464
```
| path | answer |
|---|---|
| `/metrics` | the metrics below, in Prometheus' text format |
| `/healthz` | 200 while the member joins or its polling thread lives; 503 if that hangs or the member has left: start it again |
| `/readyz` | 200 while the member is in a view in which messages flow, and has the states of its objects and all of its log; else 503 with the reason |
| `/trace` | what the member has noticed lately (views, suspicions, stalls), as a trace for ui.perfetto.dev; also after its group has ended |

Anyone who can reach the address can read them; they show numbers and the names of subgroups. So listen on a loopback address or in
a private network. A member answers 8 connections at a time, each for six seconds at most. The polling thread writes its figures a
hundred times a second at most, and waits for no reader. A member without the key does none of this.

This page is the output of `squall config metrics`; a test compares them. Members are named by their ranks. Counters begin at 0 when
the process joins, and count all views since.

| metric | kind | labels | meaning |
|---|---|---|---|
";

const TAIL: &str = "
Which member is the slowest, and why? `squall_held_up_ratio` says it of the last second; `squall_held_up_seconds` names a member that takes
no messages at all, and `topk(1, max by (member, subgroup) (squall_stability_lag))` the one that is behind in receiving. `squall status` and
`squall top` show it without Prometheus.
Messages to shards wait for the member with the most in `squall_shard_behind`, which may be of another shard than those that wait.
";
