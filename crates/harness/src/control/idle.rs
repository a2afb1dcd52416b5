//! How members wait for work.

use serde::{Deserialize, Serialize};
use squall::config::IdlePolicy;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IdleName {
    /// As suits the number of cores
    Auto,
    /// Poll on and keep the core busy
    Spin,
    /// Poll on, but let others run between
    Yield,
    /// Sleep soon
    Park,
}

impl From<IdleName> for IdlePolicy {
    fn from(idle: IdleName) -> Self {
        match idle {
            IdleName::Auto => Self::Auto,
            IdleName::Spin => Self::Spin,
            IdleName::Yield => Self::Yield,
            IdleName::Park => Self::Park,
        }
    }
}
