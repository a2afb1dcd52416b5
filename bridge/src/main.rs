//! The program `squall-dds-bridge`.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use squall::Config;
use squall::config::{Address, quantity};
use squall_dds::{DomainParticipant, TopicStore};
use squall_dds_bridge::{BridgeEvent, BridgeSettings, DdsBridge, Direction, ForwardError};
use squall_fabric::atomics::{AtomicBool, Ordering};

/// Copy samples between topics of a Squall domain and of an OMG DDS domain (RTPS over UDP), both ways
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
struct Arguments {
    /// The configuration of the Squall domain's group, as for `squall dds`
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// The file that names the topics
    #[arg(short, long, value_name = "FILE")]
    topics: PathBuf,
    /// Where this process can be reached by the members of the group
    #[arg(long, value_name = "ADDRESS")]
    listen: Address,
    /// How long to try to join
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    timeout: Duration,
    /// Print what happens as JSON, one object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Each topic has a table in the file:

  rtps_domain = 0
  [topics.chatter]                           the name in the Squall domain
  rtps_topic = \"rt/chatter\"                  the name in the RTPS domain, if it is another one
  type = \"std_msgs::msg::dds_::String_\"      the type in the RTPS domain
  form = \"text\"                              or \"cdr\", for any type in plain CDR: the bytes as they are
  direction = \"both\"                         or \"in\" (into the Squall domain), or \"out\"
  keyed = false                              whether the type has a key
  reliable = true                            in the RTPS domain
  profile = \"atomic\"                         or unordered, kept, logged: in the Squall domain
  history = 64                               how many of the last samples are held
  read_ahead = 1024                          how many samples of the RTPS domain may wait for the Squall domain

Example:
  squall-dds-bridge --config squall.toml --topics bridge.toml --listen 192.0.2.7:7450";

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    set_at_signals(&is_interrupted).context("cannot handle Ctrl-C")?;

    let settings = BridgeSettings::load(&arguments.topics)?;
    let mut config = Config::load_for_domain(&arguments.config, Some(arguments.listen.clone()), None)?;
    // The file may name the rank of a member.
    config.rank = None;
    config.timeout = arguments.timeout;
    let store = if config.storage.is_some() { TopicStore::Disk } else { TopicStore::Memory };
    let participant = DomainParticipant::builder(config).run_time_topics(store).join()?;
    let outcome = loop {
        let outcome = run(&participant, &settings, &is_interrupted, arguments.json);
        match outcome.as_ref().err().and_then(|error| error.downcast_ref()) {
            Some(ForwardError::RtpsEnded) if !is_interrupted.load(Ordering::Relaxed) => {}
            _ => break outcome,
        }
        print(&if arguments.json {
            json!({ "event": "restarted" }).to_string()
        } else {
            "the RTPS side has ended, and begins again: was this process stopped?".into()
        })?;
    };
    let _ = participant.leave(LEAVE_PATIENCE);
    outcome
}

/// Has the signals that end a process set `flag`, except those that the parent has had this process ignore, as `nohup` does.
fn set_at_signals(flag: &Arc<AtomicBool>) -> std::io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        if ignored >> (signal - 1) & 1 == 0 {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
    }
    Ok(())
}

/// Runs a bridge until it is interrupted or cannot continue.
fn run(
    participant: &DomainParticipant,
    settings: &BridgeSettings,
    is_interrupted: &AtomicBool,
    json: bool,
) -> Result<()> {
    let bridge = DdsBridge::start(participant, settings)?;
    let outcome = watch(&bridge, is_interrupted, json);
    for (topic, counts) in bridge.counts() {
        let (into_squall, into_rtps, dropped) = (counts.into_squall, counts.into_rtps, counts.dropped);
        let text = if json {
            json!({ "event": "counts", "topic": topic, "into_squall": into_squall, "into_rtps": into_rtps, "dropped": dropped })
                .to_string()
        } else {
            format!(
                "topic `{topic}`: {into_squall} samples into the Squall domain, {into_rtps} out of it, {dropped} dropped"
            )
        };
        // The process ends anyway, or begins again.
        let _ = print(&text);
    }
    outcome
}

/// Prints what happens, until the bridge is interrupted or cannot continue.
fn watch(bridge: &DdsBridge, is_interrupted: &AtomicBool, json: bool) -> Result<()> {
    let mut is_ready = false;
    while !is_interrupted.load(Ordering::Relaxed) {
        if !is_ready && bridge.is_settled() {
            is_ready = true;
            print(&if json { json!({ "event": "ready" }).to_string() } else { "samples flow".into() })?;
        }
        match bridge.next_event(LOOK_PERIOD) {
            None => {}
            Some(BridgeEvent::Failed { topic, error, .. }) if error.is_end() => {
                return Err(error).with_context(|| format!("topic `{topic}`"));
            }
            Some(event) => print(&text_of(&event, json))?,
        }
    }
    Ok(())
}

/// Prints a line. The program that reads it may have gone.
fn print(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")
}

fn text_of(event: &BridgeEvent, json: bool) -> String {
    if !json {
        return event.to_string();
    }
    let object = match event {
        BridgeEvent::Peers { topic, direction, now, before } => {
            let peers = if *direction == Direction::Out { "readers" } else { "writers" };
            json!({ "event": "peers", "topic": topic, "of": peers, "now": now, "before": before })
        }
        BridgeEvent::Failed { topic, error, left_out } => {
            json!({ "event": "failed", "topic": topic, "error": error.to_string(), "left_out": left_out })
        }
        _ => json!({ "event": event.to_string() }),
    };
    object.to_string()
}

const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How long the process waits for the view that it leaves with.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);
