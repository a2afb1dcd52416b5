//! The keys of the stages that take everything at once (Spindle §3).

use super::{ConfigKey, KeyDefault, KeyScope};

pub(in crate::config) const BATCHING: [ConfigKey; 3] = [
    ConfigKey {
        name: "send",
        takes: "true or false",
        default: KeyDefault::Value("true"),
        example: "false",
        scope: KeyScope::Group,
        meaning: "At sending.",
    },
    ConfigKey {
        name: "receive",
        takes: "true or false",
        default: KeyDefault::Value("true"),
        example: "false",
        scope: KeyScope::Group,
        meaning: "At receiving.",
    },
    ConfigKey {
        name: "delivery",
        takes: "true or false",
        default: KeyDefault::Value("true"),
        example: "false",
        scope: KeyScope::Group,
        meaning: "At delivery.",
    },
];
