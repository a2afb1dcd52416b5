//! The keys of what a durable subgroup's log keeps (Derecho §3.4, persistent mode).

use super::{ConfigKey, KeyDefault, KeyScope};

pub(in crate::config) const RETAIN: [ConfigKey; 4] = [
    ConfigKey {
        name: "time",
        takes: "a time with its unit: us, ms, s, m, h or d",
        default: KeyDefault::Words("none for their age"),
        example: "\"24h\"",
        scope: KeyScope::Member,
        meaning: "Messages that this member received within this time are kept.",
    },
    ConfigKey {
        name: "bytes",
        takes: "a number of bytes, or with KB, MB, GB (powers of 1000), KiB, MiB or GiB (of 1024)",
        default: KeyDefault::Words("none for their place"),
        example: "\"10GiB\"",
        scope: KeyScope::Member,
        meaning: "Messages in this many latest bytes of the member's log, of all its subgroups, are kept.",
    },
    ConfigKey {
        name: "versions",
        takes: "a number",
        default: KeyDefault::Words("none for their number"),
        example: "1000000",
        scope: KeyScope::Member,
        meaning: "Messages at this many latest positions are kept; places without a message count.",
    },
    ConfigKey {
        name: "automatic",
        takes: "true or false",
        default: KeyDefault::Value("false"),
        example: "true",
        scope: KeyScope::Member,
        meaning: "Whether the other messages are discarded by themselves when this member's application has taken them, and so all \
                  members have them on their disks. Such a subgroup cannot have a replicated object. Set it alike at all members: one \
                  that lacks messages gets them from the others.",
    },
];
