//! The bytes of messages between processes that restart: words of 8 bytes, little endian (Derecho §3.4, "Total failures").

use super::codec::{RegisterError, RegisterWords, put_ballot, put_end, put_record, put_vote, to_bytes};
use super::message::{RestartMessage, RestartReport};

impl RestartMessage {
    /// Returns its bytes, between processes that have `shards` durable shards.
    #[must_use]
    pub fn encode(&self, shards: usize) -> Vec<u8> {
        let mut words = vec![shards as u64];
        match self {
            Self::Report(report) => {
                words.push(REPORT);
                put_report(&mut words, report);
            }
            Self::Views(record) => {
                words.push(VIEWS);
                put_record(&mut words, record);
            }
        }
        to_bytes(&words)
    }

    /// Reads what [`RestartMessage::encode`] has written. Fuzzed as `restart_message`.
    ///
    /// # Errors
    /// If the bytes are no message, or the sender has another number of shards.
    pub fn decode(bytes: &[u8], shards: usize) -> Result<Self, RegisterError> {
        let mut words = RegisterWords::new(bytes);
        if words.next()? != shards as u64 {
            return Err(words.wrong());
        }
        let message = match words.next()? {
            REPORT => Self::Report(Box::new(report(&mut words, shards)?)),
            VIEWS => Self::Views(Box::new(words.record(shards)?)),
            _ => return Err(words.wrong()),
        };
        if words.bytes.is_empty() { Ok(message) } else { Err(RegisterError::Long) }
    }
}

fn put_report(words: &mut Vec<u64>, report: &RestartReport) {
    let RestartReport {
        order,
        is_live,
        view,
        mark,
        wants_to_join,
        promise,
        vote,
        counts,
        whole,
        is_damaged,
        lead,
        proposal,
    } = report;
    words.extend([order.0, order.1, u64::from(*is_live)]);
    words.extend(view.map_or([0, 0], |view| [1, view]));
    words.push(*mark);
    words.push(u64::from(*wants_to_join));
    put_ballot(words, *promise);
    put_vote(words, vote.as_ref());
    words.push(counts.len() as u64);
    words.extend(counts);
    words.push(whole.len() as u64);
    words.extend(whole.iter().map(|whole| u64::from(*whole)));
    words.push(u64::from(*is_damaged));
    put_ballot(words, *lead);
    words.push(u64::from(proposal.is_some()));
    proposal.iter().for_each(|end| put_end(words, end));
}

fn report(words: &mut RegisterWords<'_>, shards: usize) -> Result<RestartReport, RegisterError> {
    let order = (words.next()?, words.next()?);
    let is_live = words.flag()?;
    let view = words.optional(RegisterWords::next, 0)?;
    let mark = words.next()?;
    let wants_to_join = words.flag()?;
    let promise = words.optional_ballot()?;
    let vote = words.optional_vote(shards, view)?;
    let length = words.list(1)?;
    let counts = words.list_of(length)?;
    let length = words.list(1)?;
    let whole = (0..length).map(|_| words.flag()).collect::<Result<Vec<_>, _>>()?;
    let is_damaged = words.flag()?;
    let lead = words.optional_ballot()?;
    let proposal = if words.flag()? { Some(words.end(shards, view)?) } else { None };
    // A member that runs reports no counts.
    let has_length = |length| length == if is_live { 0 } else { shards };
    if !has_length(counts.len()) || !has_length(whole.len()) {
        return Err(words.wrong());
    }
    Ok(RestartReport {
        order,
        is_live,
        view,
        mark,
        wants_to_join,
        promise,
        vote,
        counts,
        whole,
        is_damaged,
        lead,
        proposal,
    })
}

const REPORT: u64 = 0;
const VIEWS: u64 = 1;

#[cfg(test)]
mod tests {
    use squall_fabric::NodeId;

    use super::super::register::Register;
    use super::super::register::tests::{end, view};
    use super::super::view_end::Vote;
    use super::*;
    use crate::ends::Ballot;

    fn messages() -> [RestartMessage; 3] {
        let mut register = Register::new(7, NodeId(2), view(0, &[0, 1, 2]));
        register.end_view(&end(9, view(1, &[0, 2])));
        let (ballot, next) = (Ballot::above(None, NodeId(2)), end(3, view(2, &[2])));
        let report = RestartReport {
            promise: Some(ballot),
            vote: Some(Vote { ballot: Ballot::live(1), end: next.clone() }),
            counts: vec![4],
            whole: vec![true],
            is_damaged: true,
            lead: Some(ballot),
            proposal: Some(next),
            ..RestartReport::of(5, &register)
        };
        [
            RestartMessage::Report(Box::new(report)),
            RestartMessage::Report(Box::new(RestartReport::live(6, &register))),
            RestartMessage::Views(Box::new(register.record)),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for message in messages() {
            assert_eq!(RestartMessage::decode(&message.encode(1), 1), Ok(message));
        }
    }

    /// What would not fit the receiver's tables is refused here.
    #[test]
    fn what_does_not_fit_is_refused() {
        for message in messages() {
            let bytes = message.encode(1);
            assert!(RestartMessage::decode(&bytes, 2).is_err(), "a process with other shards");
            (0..bytes.len()).for_each(|length| {
                assert!(RestartMessage::decode(&bytes[..length], 1).is_err(), "{length} bytes");
            });
            assert_eq!(RestartMessage::decode(&[&bytes[..], &[0]].concat(), 1), Err(RegisterError::Long));
        }
        let [RestartMessage::Report(report), ..] = messages() else { unreachable!("it is the first") };
        let short = RestartReport { counts: Vec::new(), ..*report.clone() };
        let far = RestartReport { view: Some(7), ..*report };
        for report in [short, far] {
            assert!(RestartMessage::decode(&RestartMessage::Report(Box::new(report)).encode(1), 1).is_err());
        }
    }
}
