//! The dashboard and the alerts that come with the members use metrics that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use squall::metrics::{METRICS, MetricKind};

fn packaged(file: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("squall_")).collect()
}

/// Returns the names under which the metrics of the table are scraped.
fn scraped() -> BTreeSet<String> {
    let names = METRICS.iter().flat_map(|metric| {
        let endings: &[&str] = match metric.kind {
            MetricKind::Histogram => &["_bucket", "_sum", "_count", ""],
            MetricKind::Counter | MetricKind::Gauge => &[""],
        };
        endings.iter().map(|ending| format!("{}{ending}", metric.name))
    });
    names.collect()
}

/// A panel with a metric that is not there is empty, and an alert on one never comes.
#[test]
fn every_metric_that_is_named_exists() {
    let scraped = scraped();
    for file in ["grafana/squall.json", "prometheus/squall.yml"] {
        let text = packaged(file);
        let unknown: Vec<&str> = named(&text).into_iter().filter(|name| !scraped.contains(*name)).collect();
        assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
    }
}

/// A metric that the dashboard lacks is seen by few.
#[test]
fn the_dashboard_shows_every_metric() {
    let text = packaged("grafana/squall.json");
    let named = named(&text);
    for metric in METRICS {
        let is_shown = named.iter().any(|name| name.starts_with(metric.name));
        assert!(is_shown, "{} is in no panel of packaging/grafana/squall.json", metric.name);
    }
}

/// Panels have different numbers and places, and each says what it shows.
#[test]
fn the_dashboard_is_whole() {
    let dashboard: Value = serde_json::from_str(&packaged("grafana/squall.json")).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("there are panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    let places: BTreeSet<String> = panels.iter().map(|panel| panel["gridPos"].to_string()).collect();
    assert_eq!(places.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().map_or(0, Vec::len);
        assert!(targets > 0 && panel["description"].is_string(), "{panel}");
    }
}
