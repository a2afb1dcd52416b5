//! Spindle's effects hold under the cost model of its testbed (Spindle §4): 16 members, 10 KB, window 100.

use squall_fabric::Duration;
use squall_protocols::multicast::{Batching, DeliveryMode};
use squall_simulator::figures::{DiskModel, Experiment, predict};

fn gigabytes(experiment: &Experiment) -> f64 {
    predict(experiment).bytes_per_second / 1e9
}

/// 16 senders deliver at 13.3 GB/s at most: each sends 15 copies over a link of 12.5 GB/s, and has its own messages. They
/// come close, since each begins with another reader, and their pieces take turns with acknowledgements.
#[test]
fn senders_fill_their_links() {
    for (window, least) in [(100, 12.0), (16, 10.0)] {
        let mut experiment = Experiment { messages: 600, ..Experiment::spindle(16) };
        experiment.settings.window = window;
        let rate = gigabytes(&experiment);
        println!("window {window}: {rate:.2} GB/s");
        assert!(rate >= least, "{rate:.2} GB/s with a window of {window}");
    }
}

/// All optimisations together gain at least a factor of 8 (in the paper, batching alone gains 16).
#[test]
fn batching_pays() {
    let all = Experiment { messages: 200, ..Experiment::spindle(16) };
    let mut none = Experiment { messages: 60, ..all.clone() };
    none.settings.batching = Batching::NONE;
    none.settings.null_sends = false;
    let (all, none) = (gigabytes(&all), gigabytes(&none));
    println!("all {all:.2} GB/s, none {none:.2} GB/s");
    assert!(all >= 8.0 * none, "{all:.2} GB/s with all optimisations, {none:.2} GB/s with none");
}

/// With null-sends, one sender that is delayed by 100 µs after each message costs the others less than 10 %.
#[test]
fn a_delayed_sender_costs_little() {
    let prompt = Experiment { messages: 200, ..Experiment::spindle(16) };
    let delays = (0..16).map(|i| if i == 3 { Duration::from_micros(100) } else { Duration::ZERO }).collect();
    let delayed = Experiment { delays, ..prompt.clone() };
    let per_sender =
        |experiment: &Experiment, senders: f64| predict(experiment).prompt_messages_per_second / senders;
    let (before, after) = (per_sender(&prompt, 16.0), per_sender(&delayed, 15.0));
    println!("per sender: {before:.0}/s, with one delayed {after:.0}/s");
    assert!(after >= 0.9 * before, "{after:.0}/s per sender instead of {before:.0}/s");
}

/// 20 subgroups in which no member sends cost less than 15 %.
#[test]
fn inactive_subgroups_cost_little() {
    let alone = Experiment { messages: 200, ..Experiment::spindle(16) };
    let among = Experiment { inactive: 20, ..alone.clone() };
    let (alone, among) = (gigabytes(&alone), gigabytes(&among));
    println!("alone {alone:.2} GB/s, with 20 inactive subgroups {among:.2} GB/s");
    assert!(among >= 0.85 * alone, "{among:.2} GB/s instead of {alone:.2} GB/s");
}

/// The messages of one sender wait for acknowledgements alone when the other senders are idle, as if these could not send; the first ones
/// also wait for nulls. Each of 4 members is the one that sends. In a durable subgroup, they also come to the disks one exchange earlier.
#[test]
fn idle_senders_cost_no_exchange() {
    // A disk that is as fast as the network, so that what waits for that is seen.
    let disk = DiskModel { bytes_per_us: 3000, confirms_after: Duration::from_micros(2) };
    for (sender, disk) in (0..4).flat_map(|sender| [(sender, None), (sender, Some(disk))]) {
        let mut one = Experiment { messages: 100, singly: true, disk, ..Experiment::spindle(4) };
        one.settings.message_max = 64;
        if disk.is_some() {
            one.settings.mode = DeliveryMode::Durable;
        }
        let mut all = one.clone();
        one.settings.senders = vec![sender];
        // The others send a message at the beginning, and the next one when all is over.
        let delay = |rank| if rank == sender { Duration::ZERO } else { Duration::from_secs(1) };
        all.delays = (0..4).map(delay).collect();
        let (all, one) = (predict(&all).latency_ns, predict(&one).latency_ns);
        let (median, least, longest) = (all[all.len() / 2], one[one.len() / 2], all[all.len() - 1]);
        println!(
            "{sender}, {disk:?}: alone {least} ns, one of four {median} ns, its first ones {longest} ns"
        );
        // Their nulls take some time, too, but no message waits for them.
        assert!(median * 10 <= least * 12, "{median} ns instead of {least} ns");
        assert!(longest * 10 >= median * 13, "{longest} ns are as short as {median} ns");
    }
}
