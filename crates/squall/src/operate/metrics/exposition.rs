//! The metrics as Prometheus reads them.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use super::board::FiguresBoard;
use super::catalogue::{METRICS, MetricKind, MetricSample, SampleValue, Scrape};

/// Returns a registry that reads the board whenever it is asked.
pub(super) fn registry(board: Arc<FiguresBoard>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MemberCollector(board)));
    registry
}

/// Returns all metrics in Prometheus' text format.
pub(super) fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_text::encode(&mut text, registry).expect("a String takes all");
    text
}

/// The format of [`text`], as HTTP names it.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
struct MemberCollector(Arc<FiguresBoard>);

impl Collector for MemberCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let scrape = Scrape::of(&self.0);
        for metric in METRICS {
            let mut samples = Vec::new();
            (metric.read)(&scrape, &mut |sample| samples.push(sample));
            if samples.is_empty() {
                continue;
            }
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
            };
            // The encoder adds the ending of a counter.
            let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
            let mut encoder = encoder.encode_descriptor(name, metric.help, None, kind)?;
            for MetricSample { labels, value } in samples {
                let labels: Vec<(&str, String)> = metric.labels.iter().copied().zip(labels).collect();
                encode(&mut encoder.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, value: &SampleValue) -> fmt::Result {
    match value {
        SampleValue::Count(count) => encoder.encode_counter(count, None::<&Exemplar<NoLabelSet, f64>>),
        SampleValue::Elapsed(seconds) => encoder.encode_counter(seconds, None::<&Exemplar<NoLabelSet, f64>>),
        SampleValue::Level(level) => encoder.encode_gauge(level),
        SampleValue::Durations { seconds, count, buckets } => {
            encoder.encode_histogram::<NoLabelSet>(*seconds, *count, buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use squall_fabric::{DurationHistogram, NodeId};
    use squall_log::WriteTally;
    use squall_protocols::genuine::ShardProgress;
    use squall_protocols::group::{HoldUp, SlowCause};
    use squall_protocols::multicast::WindowTimes;
    use squall_transports::PeerTraffic;
    use squall_transports::composite::PeerTransport;

    use super::super::board::{ShardFigures, SubgroupFigures};
    use super::*;

    /// A board on which everything that a metric can show is written.
    fn full() -> Arc<FiguresBoard> {
        let board = FiguresBoard::new(vec!["a \"b\"".into()], Vec::new(), Arc::default());
        let mut figures = board.try_write().expect("no thread reads");
        figures.written = Some(Instant::now());
        figures.view = 3;
        figures.members = vec![(NodeId(0), 0), (NodeId(64), 2)];
        figures.changes.note(3, Some(Duration::from_millis(3)));
        let mut subgroup =
            SubgroupFigures { window: Some((3, 4)), unpersisted: Some(9), ..Default::default() };
        (subgroup.totals.messages_sent, subgroup.totals.send_batches) = (17, 5);
        let mut times = DurationHistogram::default();
        [2, 2, 100].into_iter().for_each(|micros| times.note(Duration::from_micros(micros)));
        subgroup.times = WindowTimes { latencies: times, full: Duration::from_millis(2500) };
        figures.log = Some(WriteTally { frames: 3, bytes: 3 << 12, times });
        let peer = NodeId(64);
        figures.traffic = vec![
            PeerTraffic { peer, transport: PeerTransport::Tcp, sent: 70, received: Some(80) },
            PeerTraffic { peer: NodeId(0), transport: PeerTransport::Verbs, sent: 90, received: None },
            PeerTraffic { peer: NodeId(7), transport: PeerTransport::Tcp, sent: 1, received: Some(1) },
        ];
        subgroup.lags = vec![(NodeId(0), 0), (NodeId(64), 5)];
        subgroup.held_up_by = Some((NodeId(64), Instant::now()));
        subgroup.hold_up = Some(HoldUp { member: NodeId(64), cause: SlowCause::Disk, percent: 95 });
        figures.subgroups = vec![subgroup];
        let progress = ShardProgress { shard: 0, leads: true, delivered: 11, pending: 2, clock: 13 };
        let (own, behind) = (Some(("east".into(), progress)), vec![(NodeId(64), 2)]);
        figures.shards = Some(ShardFigures { sent: 12, under_way: 3, own, behind, lacked_state: None });
        drop(figures);
        Arc::new(board)
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let text = text(&registry(full()));
        for line in [
            "# TYPE squall_sent_total counter",
            "squall_sent_total{subgroup=\"a \\\"b\\\"\"} 17",
            "squall_batches_total{subgroup=\"a \\\"b\\\"\",stage=\"send\"} 5",
            "squall_view_number 3.0",
            "squall_stability_lag{subgroup=\"a \\\"b\\\"\",member=\"2\"} 5.0",
            "squall_held_up_ratio{subgroup=\"a \\\"b\\\"\",member=\"2\",cause=\"disk\"} 0.95",
            "squall_window_used_ratio{subgroup=\"a \\\"b\\\"\"} 0.75",
            "# TYPE squall_view_change_seconds histogram",
            "squall_view_change_seconds_bucket{le=\"0.005\"} 1",
            "squall_view_change_seconds_bucket{le=\"+Inf\"} 1",
            "squall_view_change_seconds_count 1",
            "# TYPE squall_delivery_latency_seconds histogram",
            "squall_delivery_latency_seconds_sum{subgroup=\"a \\\"b\\\"\"} 0.000104",
            "squall_delivery_latency_seconds_count{subgroup=\"a \\\"b\\\"\"} 3",
            "squall_log_write_seconds_bucket{le=\"+Inf\"} 3",
            "squall_log_frames_total 3",
            "squall_log_bytes_total 12288",
            "squall_window_full_seconds_total{subgroup=\"a \\\"b\\\"\"} 2.5",
            "squall_transport_bytes_total{member=\"2\",transport=\"tcp\",direction=\"sent\"} 70",
            "squall_transport_bytes_total{member=\"2\",transport=\"tcp\",direction=\"received\"} 80",
            "squall_transport_bytes_total{member=\"0\",transport=\"verbs\",direction=\"sent\"} 90",
            "squall_shards_sent_total 12",
            "squall_shard_delivered_total{shard=\"east\"} 11",
            "squall_shard_behind{shard=\"east\",member=\"2\"} 2.0",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        let peers = text.lines().filter(|line| line.starts_with("squall_transport_bytes_total{"));
        assert_eq!(peers.count(), 3, "a peer that is no member yet has no rank\n{text}");
        assert_eq!(bucket(&text, "squall_delivery_latency_seconds", 2.048e-6), Some(2), "{text}");
        assert_eq!(bucket(&text, "squall_log_write_seconds", 131.072e-6), Some(3), "{text}");
    }

    /// How many durations of a histogram are at most `limit` seconds, which may be written in several ways.
    fn bucket(text: &str, name: &str, limit: f64) -> Option<u64> {
        let is_it = |line: &&str| {
            let limits = line.split_once("le=\"").and_then(|(_, rest)| rest.split('"').next());
            line.starts_with(&format!("{name}_bucket{{"))
                && limits.and_then(|text| text.parse().ok()) == Some(limit)
        };
        text.lines().find(is_it)?.rsplit(' ').next()?.parse().ok()
    }

    /// Each metric of the table is shown under its name, and none else.
    #[test]
    fn the_table_is_what_is_shown() {
        let text = text(&registry(full()));
        let shown: BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(shown, METRICS.iter().map(|metric| metric.name).collect());
    }

    /// A member that joins has no figures yet, and says so.
    #[test]
    fn a_member_that_joins_is_not_ready() {
        let board = Arc::new(FiguresBoard::new(Vec::new(), Vec::new(), Arc::default()));
        let text = text(&registry(board));
        assert!(text.contains("\nsquall_ready 0.0\n"), "{text}");
        assert!(!text.contains("squall_figures_age_seconds"), "{text}");
    }
}
