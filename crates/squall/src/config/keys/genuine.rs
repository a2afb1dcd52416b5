//! The keys of `[genuine]` and of its shards.

use super::{ConfigKey, KeyDefault, KeyScope};

pub(in crate::config) const GENUINE: [ConfigKey; 6] = [
    ConfigKey {
        name: "shards",
        takes: "a table of 1 to 64 tables",
        default: KeyDefault::Required,
        example: "{ accounts = { members = [0, 1] } }",
        scope: KeyScope::Group,
        meaning: "The shards by name.",
    },
    ConfigKey {
        name: "window",
        takes: "1 to 32768",
        default: KeyDefault::Value("64"),
        example: "256",
        scope: KeyScope::Group,
        meaning: "The most messages to shards that a member has under way. The leader of a shard reserves 32 bytes for each of \
                  them, for each member of the group and each shard.",
    },
    ConfigKey {
        name: "message_max",
        takes: "1 byte to 4 GiB - 1, with or without a unit",
        default: KeyDefault::Value("\"10KiB\""),
        example: "\"4KiB\"",
        scope: KeyScope::Group,
        meaning: "The longest message to shards.",
    },
    ConfigKey {
        name: "window_bytes",
        takes: "1 byte to 16 GiB, at least `message_max`",
        default: KeyDefault::Words("`\"1MiB\"`, or four of the longest messages if that is more"),
        example: "\"8MiB\"",
        scope: KeyScope::Group,
        meaning: "The most bytes that a member has under way to one shard. It reserves this for each shard.",
    },
    ConfigKey {
        name: "quorum",
        takes: "\"all\" or \"majority\"",
        default: KeyDefault::Value("\"all\""),
        example: "\"majority\"",
        scope: KeyScope::Group,
        meaning: "Whose acknowledgements a delivery waits for: all members of each shard, or more than half of them with its leader, so that a \
                  follower that stalls delays nothing until `window` messages wait for it. With a majority, the group stops if a shard of three or \
                  more loses more than half of its members before the next view is installed.",
    },
    ConfigKey {
        name: "object",
        takes: "true or false",
        default: KeyDefault::Value("false"),
        example: "true",
        scope: KeyScope::Group,
        meaning: "The shards hold one replicated object (`Group::sharded_object`), whose state joiners take over. Not in a group with durable subgroups.",
    },
];

pub(in crate::config) const GENUINE_SHARD: [ConfigKey; 1] = [ConfigKey {
    name: "members",
    takes: "a list of ranks from 0 to 1023, ascending, the first of them below `members` of the group",
    default: KeyDefault::Required,
    example: "[0, 1]",
    scope: KeyScope::Group,
    meaning: "The members of the shard. A process that joins under one of these ranks is in it.",
}];
