//! The file that names the topics.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde::Deserialize;
use squall_dds::{DurabilityService, HistoryKind, Qos};

use crate::error::BridgeError;
use crate::form::TopicForm;

/// Which topics are bridged, and how.
///
/// ```
/// use squall_dds_bridge::{BridgeSettings, Direction, TopicForm};
///
/// let settings = BridgeSettings::parse(r#"
///     rtps_domain = 5
///     networks = ["127.0.0.1"]         # all networks of the host, if it is left out
///
///     [topics.chatter]                 # the name in the Squall domain
///     rtps_topic = "rt/chatter"        # the same name, if it is left out
///     type = "std_msgs::msg::dds_::String_"
///     form = "text"
/// "#)?;
/// let chatter = &settings.topics["chatter"];
/// assert_eq!((chatter.form, chatter.direction), (TopicForm::Text, Direction::Both));
/// # Ok::<(), squall_dds_bridge::BridgeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSettings {
    /// The number of the RTPS domain, at most 232.
    #[serde(default)]
    pub rtps_domain: u16,
    /// The addresses of this host that the RTPS participant uses; all, if there are none.
    #[serde(default)]
    pub networks: Vec<IpAddr>,
    /// The topics, by their names in the Squall domain.
    pub topics: BTreeMap<String, TopicSettings>,
}

/// How a topic is bridged.
///
/// ```
/// # use squall_dds_bridge::BridgeSettings;
/// let text = "[topics.squares]\ntype = \"ShapeType\"\nkeyed = true\nrtps_topic = \"Square\"";
/// let squares = BridgeSettings::parse(text)?.topics["squares"].clone();
/// assert_eq!((squares.rtps_topic.as_deref(), squares.keyed, squares.history), (Some("Square"), true, 64));
/// # Ok::<(), squall_dds_bridge::BridgeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    /// The name in the RTPS domain; `None`: the same.
    #[serde(default)]
    pub rtps_topic: Option<String>,
    /// The name of the type in the RTPS domain.
    #[serde(rename = "type")]
    pub type_name: String,
    /// What a sample is in the Squall domain.
    #[serde(default)]
    pub form: TopicForm,
    /// Which way samples go.
    #[serde(default)]
    pub direction: Direction,
    /// Whether the type has a key in the RTPS domain. Samples are forwarded, the ends of instances are not.
    #[serde(default)]
    pub keyed: bool,
    /// Whether samples are sent again in the RTPS domain until readers have them, and writers have to do the same.
    #[serde(default = "yes")]
    pub reliable: bool,
    /// The profile of the topic in the Squall domain.
    #[serde(default)]
    pub profile: TopicProfile,
    /// How many of the last samples the endpoints in the RTPS domain hold; and the Squall domain, if it keeps the topic.
    #[serde(default = "usual_history")]
    pub history: u16,
    /// How many samples of the RTPS domain may wait for the Squall domain, before the oldest are lost. The bridge has memory for that many.
    #[serde(default = "usual_read_ahead")]
    pub read_ahead: u16,
}

const fn yes() -> bool {
    true
}

const fn usual_history() -> u16 {
    64
}

const fn usual_read_ahead() -> u16 {
    1024
}

/// Which way samples of a topic go.
///
/// ```
/// use squall_dds_bridge::Direction;
///
/// assert!(Direction::Both.is_in() && Direction::Both.is_out());
/// assert!(Direction::In.is_in() && !Direction::In.is_out());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Both ways.
    #[default]
    Both,
    /// From the RTPS domain into the Squall domain.
    In,
    /// From the Squall domain into the RTPS domain.
    Out,
}

impl Direction {
    /// Returns whether samples go into the Squall domain.
    #[must_use]
    pub const fn is_in(self) -> bool {
        matches!(self, Self::Both | Self::In)
    }

    /// Returns whether samples go into the RTPS domain.
    #[must_use]
    pub const fn is_out(self) -> bool {
        matches!(self, Self::Both | Self::Out)
    }
}

/// The profile of a topic in the Squall domain.
///
/// ```
/// use squall_dds_bridge::TopicProfile;
///
/// assert_eq!(TopicProfile::default(), TopicProfile::Atomic);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopicProfile {
    /// [`Qos::UNORDERED`].
    Unordered,
    /// [`Qos::ATOMIC`].
    #[default]
    Atomic,
    /// [`Qos::KEPT`].
    Kept,
    /// [`Qos::LOGGED`].
    Logged,
}

impl TopicProfile {
    pub(crate) const fn keeps(self) -> bool {
        matches!(self, Self::Kept | Self::Logged)
    }
}

impl BridgeSettings {
    /// Reads the file.
    ///
    /// # Errors
    /// [`BridgeError`], with what to do next.
    pub fn load(path: &Path) -> Result<Self, BridgeError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| BridgeError::Unreadable { path: path.to_owned(), error })?;
        Self::parse(&text)
    }

    /// Reads the text of such a file. Not fuzzed: a person writes it, and serde and toml read it.
    ///
    /// # Errors
    /// [`BridgeError::Settings`] with the line, or what is to be changed.
    pub fn parse(text: &str) -> Result<Self, BridgeError> {
        let settings: Self =
            toml::from_str(text).map_err(|error| BridgeError::Settings(error.to_string()))?;
        settings.check().map_err(BridgeError::Settings)?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), String> {
        if self.topics.is_empty() {
            return Err("name at least one topic, as in [topics.chatter]".into());
        }
        if self.rtps_domain > DOMAIN_MAX {
            return Err(format!("rtps_domain is {}: it has to be at most {DOMAIN_MAX}", self.rtps_domain));
        }
        let mut seen = BTreeMap::new();
        for (name, topic) in &self.topics {
            if topic.history == 0 {
                return Err(format!("topic `{name}`: history is 0; hold at least one sample"));
            }
            if topic.read_ahead == 0 {
                return Err(format!("topic `{name}`: read_ahead is 0; let at least one sample wait"));
            }
            let rtps = topic.rtps_topic.as_ref().unwrap_or(name);
            if let Some(other) = seen.insert(rtps, name) {
                return Err(format!(
                    "topics `{other}` and `{name}` are both `{rtps}` in the RTPS domain: give each one of its own"
                ));
            }
        }
        Ok(())
    }
}

impl TopicSettings {
    /// Returns the policies of the topic in the Squall domain.
    pub(crate) fn qos(&self) -> Qos {
        let profile = match self.profile {
            TopicProfile::Unordered => Qos::UNORDERED,
            TopicProfile::Atomic => Qos::ATOMIC,
            TopicProfile::Kept => Qos::KEPT,
            TopicProfile::Logged => Qos::LOGGED,
        };
        let history = HistoryKind::KeepLast(self.history.into());
        let service = DurabilityService { history, ..DurabilityService::EVERYTHING };
        Qos { durability_service: self.profile.keeps().then_some(service), ..profile }
    }
}

/// Above it, the UDP ports of a domain would be above 65535 (RTPS 2.5 §9.6.2.3).
const DOMAIN_MAX: u16 = 232;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_named() {
        let one = "[topics.a]\ntype = \"T\"\n";
        for (text, fault) in [
            (String::new(), "missing field `topics`"),
            ("[topics]".into(), "at least one topic"),
            ("[topics.a]".into(), "missing field `type`"),
            (format!("{one}depth = 3"), "unknown field `depth`"),
            (format!("{one}form = \"json\""), "unknown variant `json`"),
            (format!("{one}history = 0"), "hold at least one sample"),
            (format!("{one}read_ahead = 0"), "let at least one sample wait"),
            (format!("rtps_domain = 233\n{one}"), "at most 232"),
            (format!("networks = [\"lo\"]\n{one}"), "invalid IP address"),
            (format!("{one}[topics.b]\ntype = \"T\"\nrtps_topic = \"a\""), "topics `a` and `b` are both `a`"),
        ] {
            let error = BridgeSettings::parse(&text).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}\nhas no `{fault}`");
        }
    }

    #[test]
    fn kept_topics_keep_what_the_file_says() {
        let text = "[topics.a]\ntype = \"T\"\nprofile = \"kept\"\nhistory = 5";
        let qos = BridgeSettings::parse(text).unwrap().topics["a"].qos();
        assert_eq!(qos.durability_service.unwrap().history, HistoryKind::KeepLast(5));
        qos.check().unwrap();
    }
}
