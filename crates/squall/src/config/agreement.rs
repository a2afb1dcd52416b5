//! What of the configuration must be the same at all members, setting by setting.

use std::fmt::Debug;

use squall_transports::bootstrap::Agreement;

use super::{Config, GenuineConfig, Ranks, SubgroupConfig};

/// Returns the settings that must be the same at all members.
pub(super) fn agreement(config: &Config) -> Agreement {
    let whole = |key: &str, value: String| (format!("`{key}`"), value);
    let suspicion = config.suspicion_after.map_or(0, |after| after.as_millis());
    let mut settings = vec![
        whole("transport", word(&config.transport)),
        whole("suspicion_after_ms", suspicion.to_string()),
        whole("partition_safety", word(&config.partition_safety)),
    ];
    for (name, subgroup) in &config.subgroups {
        // Before its keys in the order of settings.
        settings.push((format!("[subgroups.{name}]"), "configured".into()));
        let of_subgroup = subgroup_settings(subgroup).into_iter();
        settings.extend(of_subgroup.map(|(key, value)| (format!("`{key}` of subgroup `{name}`"), value)));
    }
    if let Some(genuine) = &config.genuine {
        settings.push(("[genuine]".into(), "configured".into()));
        settings.extend(genuine_settings(genuine));
    }
    Agreement::new(settings)
}

/// Every field has its place here, or is one in which members may differ.
fn subgroup_settings(subgroup: &SubgroupConfig) -> Vec<(&'static str, String)> {
    let SubgroupConfig {
        members,
        senders,
        mode,
        window,
        message_max,
        window_bytes,
        large_max,
        large_window_bytes,
        large_carrier,
        batching,
        null_sends,
        express,
        slow_consumer,
        slow_after,
        shards,
        replicas,
        // What a member keeps on its disk is its own matter.
        checkpoint_bytes: _,
        retain: _,
        // One entry stands for all shards.
        shard: _,
    } = subgroup;
    vec![
        ("members", ranks(members)),
        ("senders", ranks(senders)),
        ("mode", word(mode)),
        ("window", window.to_string()),
        ("message_max", message_max.to_string()),
        ("window_bytes", window_bytes.to_string()),
        ("large_max", optional(large_max.as_ref())),
        ("large_window_bytes", optional(large_window_bytes.as_ref())),
        ("large_carrier", optional(large_carrier.as_ref())),
        (
            "batching",
            format!(
                "{{ send = {}, receive = {}, delivery = {} }}",
                batching.send, batching.receive, batching.delivery
            ),
        ),
        ("null_sends", null_sends.to_string()),
        ("express", optional(express.as_ref())),
        ("slow_consumer", word(slow_consumer)),
        ("slow_after_ms", slow_after.as_millis().to_string()),
        ("shards", shards.to_string()),
        ("replicas", replicas.to_string()),
    ]
}

fn genuine_settings(genuine: &GenuineConfig) -> Vec<(String, String)> {
    let GenuineConfig { shards, window, message_max, window_bytes, object, quorum } = genuine;
    let of = |key: &str, value: String| (format!("`{key}` in [genuine]"), value);
    let mut settings = vec![
        of("window", window.to_string()),
        of("message_max", message_max.to_string()),
        of("window_bytes", window_bytes.to_string()),
        of("object", object.to_string()),
        of("quorum", word(quorum)),
    ];
    let of_shard = |(name, ranks): (&String, &Vec<usize>)| {
        (format!("`members` of shard `{name}`"), format!("{ranks:?}"))
    };
    settings.extend(shards.iter().map(of_shard));
    settings
}

fn ranks(ranks: &Ranks) -> String {
    match ranks {
        Ranks::All => "\"all\"".into(),
        Ranks::These(ranks) => format!("{ranks:?}"),
    }
}

/// A choice as it is written.
fn word(choice: &impl Debug) -> String {
    format!("\"{}\"", format!("{choice:?}").to_lowercase())
}

fn optional(value: Option<&impl Debug>) -> String {
    value.map_or_else(|| "not set".into(), |value| format!("{value:?}").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two members that differ can say in which key, with the values of both.
    #[test]
    fn the_key_that_differs_is_named() {
        let with = |change: &dyn Fn(&mut SubgroupConfig)| {
            let mut subgroup = SubgroupConfig::default();
            change(&mut subgroup);
            agreement(&Config::local("agreement", 3).subgroup("a", subgroup))
        };
        let here = with(&|_| ());
        let differs = |change: &dyn Fn(&mut SubgroupConfig)| {
            here.difference(&with(change)).map(|difference| difference.at_refusing())
        };
        assert_eq!(
            differs(&|subgroup| subgroup.window = 64).as_deref(),
            Some("`window` of subgroup `a` is 256 here and 64 there")
        );
        assert_eq!(
            differs(&|subgroup| subgroup.large_max = Some(1 << 20)).as_deref(),
            Some("`large_max` of subgroup `a` is not set here and 1048576 there")
        );
        assert_eq!(
            differs(&|subgroup| subgroup.senders = Ranks::These(vec![0, 2])).as_deref(),
            Some("`senders` of subgroup `a` is \"all\" here and [0, 2] there")
        );
        assert_eq!(differs(&|subgroup| subgroup.checkpoint_bytes = 1), None);
        let other = agreement(&Config::local("agreement", 3));
        assert_eq!(
            here.difference(&other).unwrap().at_refused(),
            "[subgroups.a] is missing here and configured there"
        );
    }
}
