//! Records: what the frames hold.

/// The length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 40;

/// A version of a subgroup's log: the sequence within a view. Ordered as the log is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct LogPosition {
    /// The number of the view.
    pub view: u64,
    /// The sequence within the view.
    pub sequence: u64,
}

impl LogPosition {
    /// After all others.
    pub const MAX: Self = Self { view: u64::MAX, sequence: u64::MAX };
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordKind {
    /// A message, as it was received.
    Message = 1,
    /// What counts of a view that has ended: up to the record's sequence.
    Trim = 2,
    /// A view, in which the messages behind it are.
    View = 3,
    /// A checkpoint was taken, at the record's position.
    Checkpoint = 4,
    /// How far this member has the view: what has no record up to the record's sequence is a null.
    Frontier = 5,
}

impl RecordKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Message, Self::Trim, Self::View, Self::Checkpoint, Self::Frontier];

    /// Returns whether records of this kind say which messages a view has.
    #[must_use]
    pub const fn is_content(self) -> bool {
        matches!(self, Self::Message | Self::Frontier)
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The subgroup.
    pub subgroup: u32,
    /// What it is about.
    pub kind: RecordKind,
    /// The position in the subgroup's order.
    pub position: LogPosition,
    /// The rank of the sender.
    pub sender: u32,
    /// The hybrid clock, monotone per subgroup.
    pub time: u64,
    /// The message, or what the kind needs.
    pub bytes: &'a [u8],
}

/// Why bytes are not records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end inside a record.
    #[error("the frame ends inside record {0}")]
    Short(u32),
    /// The kind is none.
    #[error(
        "record {index} has the kind {kind}, which this release does not know; read the log with a newer one"
    )]
    Kind {
        /// Which record of the frame, from 0.
        index: u32,
        /// Its kind.
        kind: u8,
    },
    /// Bytes follow the last record.
    #[error("{0} bytes follow the last record of the frame")]
    Rest(usize),
}

impl LogRecord<'_> {
    /// Returns how many bytes the record takes in a frame.
    #[must_use]
    pub const fn bytes_in_frame(&self) -> usize {
        RECORD_HEADER_BYTES + self.bytes.len().next_multiple_of(8)
    }

    /// Returns the header of a record with up to 4 GiB.
    #[must_use]
    pub fn header(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &u32::try_from(self.bytes.len()).expect("a record is shorter than a segment").to_le_bytes());
        put(4, &[self.kind as u8]);
        put(8, &self.subgroup.to_le_bytes());
        put(12, &self.sender.to_le_bytes());
        put(16, &self.position.view.to_le_bytes());
        put(24, &self.position.sequence.to_le_bytes());
        put(32, &self.time.to_le_bytes());
        bytes
    }
}

/// Reads the `count` records of a frame's body, whose check holds. Fuzzed as `record`.
///
/// # Errors
/// If the body is not exactly that.
pub fn read_records<'a>(
    body: &'a [u8],
    count: u32,
    mut each: impl FnMut(LogRecord<'a>),
) -> Result<(), RecordError> {
    let mut rest = body;
    for index in 0..count {
        let (header, behind) =
            rest.split_first_chunk::<RECORD_HEADER_BYTES>().ok_or(RecordError::Short(index))?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let kind = RecordKind::ALL.into_iter().find(|kind| *kind as u8 == header[4]);
        let kind = kind.ok_or(RecordError::Kind { index, kind: header[4] })?;
        let length = half(0) as usize;
        let (bytes, behind) = behind.split_at_checked(length).ok_or(RecordError::Short(index))?;
        let padding = length.next_multiple_of(8) - length;
        rest = behind.split_at_checked(padding).ok_or(RecordError::Short(index))?.1;
        let position = LogPosition { view: word(16), sequence: word(24) };
        each(LogRecord { subgroup: half(8), kind, position, sender: half(12), time: word(32), bytes });
    }
    if rest.is_empty() { Ok(()) } else { Err(RecordError::Rest(rest.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(lengths: &[usize]) -> Vec<u8> {
        let mut body = Vec::new();
        for (i, length) in lengths.iter().enumerate() {
            let bytes = vec![i as u8 + 1; *length];
            let record = record(i, &bytes);
            body.extend(record.header());
            body.extend(&bytes);
            body.resize(body.len().next_multiple_of(8), 0);
        }
        body
    }

    fn record(i: usize, bytes: &[u8]) -> LogRecord<'_> {
        let position = LogPosition { view: 3, sequence: 70 + i as u64 };
        LogRecord { subgroup: 9, kind: RecordKind::ALL[i % 5], position, sender: 2, time: 1 << 40, bytes }
    }

    #[test]
    fn records_are_read_as_written() {
        let lengths = [0, 1, 7, 8, 9, 300];
        let body = body(&lengths);
        let mut index = 0;
        read_records(&body, 6, |found| {
            assert_eq!(found, record(index, &vec![index as u8 + 1; lengths[index]]));
            index += 1;
        })
        .expect("they are whole");
        assert_eq!(index, 6);
    }

    #[test]
    fn other_bytes_are_refused() {
        let body = body(&[5, 6]);
        assert_eq!(read_records(&body, 3, |_| ()), Err(RecordError::Short(2)));
        assert_eq!(read_records(&body[..body.len() - 1], 2, |_| ()), Err(RecordError::Short(1)));
        assert_eq!(read_records(&body, 1, |_| ()), Err(RecordError::Rest(48)));
        let mut wrong = body;
        wrong[4] = 6;
        assert_eq!(read_records(&wrong, 2, |_| ()), Err(RecordError::Kind { index: 0, kind: 6 }));
    }
}
