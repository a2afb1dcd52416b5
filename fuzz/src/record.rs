//! Records in the body of a frame.

use squall_log::{LogPosition, LogRecord, RecordKind, read_records};

/// The first byte is the number of records. Padding aside, records that are taken are written again.
pub fn feed(bytes: &[u8]) {
    let Some((count, body)) = bytes.split_first() else { return };
    let mut records = Vec::new();
    if read_records(body, u32::from(*count), |record| records.push(record)).is_ok() {
        assert_eq!(records.len(), usize::from(*count));
        assert_eq!(records.iter().map(LogRecord::bytes_in_frame).sum::<usize>(), body.len());
    }
}

/// None, one, and three.
pub fn seeds() -> Vec<Vec<u8>> {
    let body = |lengths: &[usize]| {
        let mut body = vec![lengths.len() as u8];
        for length in lengths {
            let bytes = vec![3; *length];
            let position = LogPosition { view: 1, sequence: 2 };
            let record = LogRecord {
                subgroup: 4,
                kind: RecordKind::Trim,
                position,
                sender: 5,
                time: 6,
                bytes: &bytes,
            };
            body.extend(record.header());
            body.extend(&bytes);
            body.resize(body.len() + length.next_multiple_of(8) - length, 0);
        }
        body
    };
    vec![body(&[]), body(&[0]), body(&[1, 8, 30])]
}
