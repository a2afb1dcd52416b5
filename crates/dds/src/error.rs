//! Errors of participants, topics, writers and readers; each message says what to do next.

use std::time::Duration;

use squall::external::ExternalError;
use squall::object::ObjectError;
use squall::{GroupError, HandleError, JoinError, SendError};

use crate::qos::{
    DurabilityService, HistoryKind, PolicyId, Presentation, PresentationScope, Profile, Qos, QosError,
};
use crate::run_time::TopicStore;

squall_fabric::debug_as_text!(
    TopicNameError,
    ParticipantError,
    EntityError,
    WriteError,
    ReadError,
    DataError
);

/// Why a name is not one of a topic.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, EntityError, Qos, TopicStore};
/// # let config = Config::local(&format!("doc-name-{}", std::process::id()), 1);
/// # let participant = DomainParticipant::builder(config).run_time_topics(TopicStore::Memory).join()?;
/// let error = participant.create_topic::<Vec<u8>>("two\nlines", Qos::ATOMIC).unwrap_err();
/// assert!(matches!(error, EntityError::Name(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no name of a topic: choose one of 1 to 256 bytes without control characters")]
pub struct TopicNameError {
    /// The beginning of the name, with its control characters escaped.
    pub name: String,
}

/// Why a process takes no part in a domain.
///
/// ```
/// use squall::Config;
/// use squall_dds::{DomainParticipant, ParticipantError, Qos};
///
/// let qos = Qos { ownership_strength: 7, ..Qos::ATOMIC };
/// let error = DomainParticipant::builder(Config::local("doc-error", 1)).topic("t", qos).join().unwrap_err();
/// assert!(matches!(error, ParticipantError::Qos { .. }));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ParticipantError {
    /// A policy of a topic is refused.
    #[error("topic `{topic}`: {error}")]
    Qos {
        /// The topic's name.
        topic: String,
        /// The policy, and what to do instead.
        error: QosError,
    },
    /// The name of a topic is refused.
    #[error(transparent)]
    Name(#[from] TopicNameError),
    /// A topic has several shards or replicas, or some members only.
    #[error(
        "topic `{0}`: all members have to be in its subgroup and send: leave out members, senders, shards and replicas"
    )]
    Layout(String),
    /// The group cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The configuration has a subgroup that is no topic.
    #[error(
        "subgroup `{0}` of the configuration is no topic, and this participant would hold up its senders: give it to the builder, or leave it out"
    )]
    NoTopic(String),
    /// A topic that has a subgroup of its own is to be in one order with others.
    #[error("topic `{0}` has a subgroup of its own, and PRESENTATION scope GROUP: create it at run time")]
    Grouped(String),
    /// A topic has the name of a subgroup that carries others.
    #[error(
        "the name `{0}` is that of a subgroup for topics that are created at run time: choose another name"
    )]
    Reserved(String),
    /// A topic is kept in memory, and another one on disk.
    #[error(
        "topic `{kept}` is kept in memory, and `{logged}` on disk: when the group restarts from its logs, what is in memory is lost for \
         good; request DURABILITY PERSISTENT for both (the list of topics, `dds-topics`: TopicStore::Disk), or put them into different groups"
    )]
    LosesHistory {
        /// The topic that is kept in memory.
        kept: String,
        /// The topic that is kept on disk.
        logged: String,
    },
    /// A topic keeps something else than this participant expects.
    #[error(
        "topic `{topic}` keeps {present:?}, and not {wanted:?}: let DURABILITY_SERVICE be the same at all participants, and in all runs of a topic that has a log"
    )]
    Conflict {
        /// The topic's name.
        topic: String,
        /// What it keeps.
        present: DurabilityService,
        /// What this participant was given.
        wanted: DurabilityService,
    },
    /// The history of a topic is not available.
    #[error("topic `{topic}`: {error}")]
    History {
        /// The topic's name.
        topic: String,
        /// What is wrong.
        error: WriteError,
    },
    /// No member serves the client.
    #[error(transparent)]
    Unserved(#[from] ExternalError),
    /// A subgroup of the group is not available.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The system refuses a thread.
    #[error("cannot start the thread of a topic: {0}; end other processes, or name fewer topics")]
    Thread(std::io::Error),
}

/// Why a topic, a writer or a reader is not created.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, EntityError, Qos};
/// # let config = Config::local(&format!("doc-entity-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).topic("chat", Qos::ATOMIC).join()?;
/// assert!(matches!(participant.topic::<Vec<u8>>("chit"), Err(EntityError::UnknownTopic(_))));
/// # Ok::<(), squall_dds::ParticipantError>(())
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum EntityError {
    /// The name of a topic is refused.
    #[error(transparent)]
    Name(#[from] TopicNameError),
    /// No such topic.
    #[error(
        "there is no topic `{0}`: create it, or give it to the builder of each participant of the domain"
    )]
    UnknownTopic(String),
    /// The participant's domain has the topics that were named when it joined, and no others.
    #[error(
        "topic `{0}` cannot be created: call run_time_topics on the builder of each participant of the domain"
    )]
    FixedTopics(String),
    /// The domain has all the topics that it can have.
    #[error("topic `{0}` is not created: the domain has 4096 topics, and no more; use one of them")]
    TooManyTopics(String),
    /// The topic exists, and works in another way.
    #[error(
        "topic `{topic}` exists with other policies: {}; create it with these, or choose another name",
        policies(present)
    )]
    IncompatibleTopic {
        /// The topic's name.
        topic: String,
        /// Its policies.
        present: Box<Qos>,
    },
    /// The domain keeps histories elsewhere.
    #[error(
        "topic `{topic}` with profile {profile} is not created: this domain keeps histories {}", store.advice()
    )]
    NoStore {
        /// The topic's name.
        topic: String,
        /// The profile that its policies ask for.
        profile: Profile,
        /// Where the domain keeps histories.
        store: TopicStore,
    },
    /// The reader is of several topics in one order.
    #[error(
        "a reader of topic `{0}` with PRESENTATION scope GROUP needs a subscriber: create it by DomainParticipant::subscriber"
    )]
    NeedsSubscriber(String),
    /// The topic or the policies do not have the scope of groups.
    #[error(
        "topic `{0}` is not in one order with others: create it at run time with PRESENTATION scope GROUP, and give its readers and writers \
         this scope"
    )]
    NotGrouped(String),
    /// The member that a client is connected to refuses the reader or the writer.
    #[error("topic `{topic}`: {cause}")]
    Refused {
        /// The topic's name.
        topic: String,
        /// What the member says, and what to do next.
        cause: String,
    },
    /// No member serves the client.
    #[error(transparent)]
    Unserved(#[from] ExternalError),
    /// A reader of the subscriber is of a topic in another order.
    #[error(
        "topic `{0}` is not in one order with the subscriber's topics: let all of them have the same profile, or use two subscribers"
    )]
    OtherOrder(String),
    /// Samples of the topic cannot be read where they are.
    #[error(
        "topic `{topic}` cannot be read in place, since {policy} needs a cache: use DomainParticipant::reader, or other policies"
    )]
    NotInPlace {
        /// The topic's name.
        topic: String,
        /// The policy of the topic or the reader.
        policy: PolicyId,
    },
    /// It is not known whether the topic is created.
    #[error("topic `{topic}`: {error}; create it again, which finds it if it is there")]
    Creation {
        /// The topic's name.
        topic: String,
        /// What is wrong.
        error: WriteError,
    },
    /// No participant has created the topic in time.
    #[error(
        "there was no topic `{topic}` within {waited:?}: start the participant that creates it, or wait longer"
    )]
    NotFound {
        /// The topic's name.
        topic: String,
        /// How long this participant has waited.
        waited: Duration,
    },
    /// The topic is used with another type in this process.
    #[error("topic `{topic}` has the type `{present}`, and not `{wanted}`: use the same type everywhere")]
    TypeMismatch {
        /// The topic's name.
        topic: String,
        /// The type with which it is used.
        present: String,
        /// The type that was given.
        wanted: String,
    },
    /// A policy is refused.
    #[error(transparent)]
    Qos(#[from] QosError),
    /// The writer promises what its topic does not do.
    #[error(
        "a writer with profile {wanted} does not suit topic `{topic}` with {present}: let RELIABILITY and DURABILITY be the topic's"
    )]
    Profile {
        /// The topic's name.
        topic: String,
        /// Its profile.
        present: Profile,
        /// The profile that the writer's policies ask for.
        wanted: Profile,
    },
    /// The participant has all the endpoints that it can have.
    #[error("topic `{0}`: this participant has had 65536 readers and writers: join again")]
    TooMany(String),
    /// A condition belongs to another participant.
    #[error("the condition belongs to another participant: take a wait set of that one")]
    OtherParticipant,
    /// The others could not be informed.
    #[error("the endpoint is not announced: {0}")]
    NotAnnounced(WriteError),
}

impl From<WriteError> for EntityError {
    fn from(cause: WriteError) -> Self {
        Self::NotAnnounced(cause)
    }
}

/// Why a sample was not written.
///
/// ```
/// # use squall::Config;
/// # use squall_dds::{DomainParticipant, Qos, WriteError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-write-{}", std::process::id()), 1);
/// let participant = DomainParticipant::builder(config).topic("bytes", Qos::ATOMIC).join()?;
/// let writer = participant.writer(&participant.topic::<Vec<u8>>("bytes")?, Qos::ATOMIC)?;
/// assert!(matches!(writer.write(&vec![0; 1 << 20]), Err(WriteError::TooLong { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// There was no space within `max_blocking_time`. Nothing was written.
    #[error(
        "no space within {0:?}, because readers are slow or a view is changing: write again, or raise max_blocking_time"
    )]
    Timeout(Duration),
    /// The outcome was not known within `max_blocking_time`.
    #[error(
        "it is not known whether the sample was written: wait for it at a reader before writing it again"
    )]
    Unknown,
    /// This participant was out of the topic's subgroup for a while. Nothing was written.
    #[error(
        "the sample is in no history, because this participant was out of the topic's subgroup: write it again"
    )]
    NotDelivered,
    /// The topic keeps all samples that it may keep. Nothing was written.
    #[error(
        "the topic keeps {samples_max} samples, and no more: raise samples_max in DURABILITY_SERVICE, or keep the last ones only"
    )]
    HistoryFull {
        /// How many it may keep.
        samples_max: usize,
    },
    /// The topic has as many readers and writers as it may have, or the domain has as many clients.
    #[error(
        "the topic's history has the announcements of 65536 readers and writers, or the domain that many clients, and no more: close some; those \
         of a client that has died end a minute later"
    )]
    TooManyEndpoints,
    /// The domain does not know the topic of a client any more. Nothing was written.
    #[error("the topic is not there any more, since the domain has restarted: connect again")]
    Restarted,
    /// The sample is longer than the topic's messages. Nothing was written.
    #[error(
        "a sample of {length} bytes with its header is longer than the limit ({length_max}): raise message_max of the topic's subgroup"
    )]
    TooLong {
        /// The bytes of the message.
        length: usize,
        /// The length of the longest one.
        length_max: usize,
    },
    /// The writer's publisher has an open set, and the writer's changes cannot be a part of it.
    #[error(
        "the writer does not offer coherent sets: let PRESENTATION have coherent_access, or write it by another publisher"
    )]
    NotCoherent,
    /// The open set of the publisher has changes of topics in another order.
    #[error(
        "the topic is not in one order with the others of this set: let all of them have the same profile, or use two sets"
    )]
    OtherOrder,
    /// The publisher has an open set.
    #[error("the publisher has an open set: commit or drop it before, or use another publisher")]
    SetOpen,
    /// The member that a client outside the group writes through is lost, or refuses what it was sent.
    #[error(
        "of the samples before, it is not known whether {unknown} were written: {cause}; look for them at a reader before you write them again"
    )]
    MemberLost {
        /// How many samples were on their way, at most.
        unknown: u64,
        /// What has happened.
        cause: String,
    },
    /// No member serves the client. Nothing was written.
    #[error(transparent)]
    Unserved(#[from] ExternalError),
    /// The sample cannot be serialised. Nothing was written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The group has ended.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The topic's history is not available.
    #[error("the topic's history does not take the sample: {0}")]
    History(ObjectError),
}

impl WriteError {
    /// Translates an error; those that pass are the caller's to handle.
    pub(crate) fn from_send(error: SendError, waited: Duration) -> Self {
        match error {
            SendError::TooLong { length, message_max } => Self::TooLong { length, length_max: message_max },
            SendError::Group(error) => Self::Group(error),
            _ => Self::Timeout(waited),
        }
    }
}

/// Why there are no samples to read, nor will be.
///
/// ```
/// # use squall_dds::ReadError;
/// # use std::time::Duration;
/// let error = ReadError::Timeout(Duration::from_secs(1));
/// assert!(error.to_string().contains("1s"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// What was waited for has not happened in time.
    #[error("nothing within {0:?}: check that writers have matched (subscription_matched), or wait longer")]
    Timeout(Duration),
    /// The topic's history has more samples than the reader holds, and these were not taken while it waited.
    #[error(
        "the history of the topic is longer than the {0} samples that the reader holds: take samples while you wait for the history, or \
         give the reader more space (RESOURCE_LIMITS)"
    )]
    ReaderFull(usize),
    /// The group has ended, and everything that came has been taken.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The reader is one of several that are read together.
    #[error("the reader has PRESENTATION scope GROUP: read it by TopicSubscriber::begin_access")]
    NeedsAccess,
    /// No member answers a client outside the group.
    #[error("no member has answered with the topic's samples: {0}")]
    NoAnswer(WriteError),
    /// The member from which a client outside the group gets the samples is lost.
    #[error(
        "samples may be missing here, since the connection with a member has ended: {0}; read again, which continues through a member that is there"
    )]
    Interrupted(String),
    /// No member serves the client.
    #[error(transparent)]
    Unserved(#[from] ExternalError),
    /// The participant has left its group, and everything that came has been taken.
    #[error("the participant has left: join again")]
    Left,
}

/// Why a sample has no bytes, or bytes are no sample.
///
/// ```
/// use squall_dds::TopicData;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Count(u64);
/// impl squall_dds::Keyed for Count {
///     const TYPE_NAME: &'static str = "Count";
///     type Key = ();
///     fn key(&self) {}
/// }
/// assert!(Count::from_sample(&[]).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a sample of type `{type_name}` cannot be serialised or read: {cause}; let all participants have the same type"
)]
pub struct DataError {
    /// The name of the type.
    pub type_name: &'static str,
    /// What is wrong.
    pub cause: String,
}

/// The policies of a topic that another one of its name must have, in words.
fn policies(qos: &Qos) -> String {
    let kept = match &qos.durability_service {
        None => "not set".to_owned(),
        Some(DurabilityService { history, samples_max }) => {
            let history = match history {
                HistoryKind::KeepAll => "all samples".to_owned(),
                HistoryKind::KeepLast(depth) => format!("the last {depth} samples of each instance"),
            };
            format!("{history}, at most {samples_max} in all")
        }
    };
    let Presentation { scope, coherent_access, ordered_access } = qos.presentation;
    let scope = match scope {
        PresentationScope::Instance => "INSTANCE",
        PresentationScope::Topic => "TOPIC",
        PresentationScope::Group => "GROUP",
    };
    let access = match (coherent_access, ordered_access) {
        (true, true) => ", coherent and ordered",
        (true, false) => ", coherent",
        (false, true) => ", ordered",
        (false, false) => "",
    };
    format!("profile {}, DURABILITY_SERVICE {kept}, PRESENTATION with scope {scope}{access}", qos.profile())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_of_a_topic_are_words() {
        let text = "profile atomic, DURABILITY_SERVICE not set, PRESENTATION with scope TOPIC, ordered";
        assert_eq!(policies(&Qos::ATOMIC), text);
        let kept = Qos { durability_service: Some(DurabilityService::EVERYTHING), ..Qos::KEPT };
        assert!(policies(&kept).contains("DURABILITY_SERVICE all samples, at most 65536 in all"));
    }
}
