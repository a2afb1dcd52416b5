//! The lines of JSON that `squall cp` and `squall serve` say to each other, after the secret is proved. The command is no
//! library, so its pure files are included.

use serde::Serialize;
use serde::de::DeserializeOwned;

#[path = "../../crates/cli/src/copy/message.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
mod message;
#[path = "../../crates/cli/src/copy/parcel.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
mod parcel;

use message::{
    BLOCK_BYTES, CopyAnswer, CopyBegin, CopyCall, CopyDigest, CopyEntry, CopyLinkAnswer, CopyLinks,
    CopyRequest, CopyToken, CopyTransport, DigestVerdict, FileEntry, HeldContent, HostId, ParcelAnswer,
    QueuePosition, SpaceAnswer, parse,
};
use parcel::ParcelKind;

/// What a host hears, line by line: what is taken can be said again, and no answer and no parcel makes it take more memory
/// than it promises.
pub fn feed(bytes: &[u8]) {
    let mut request = None;
    for line in bytes.split(|byte| *byte == b'\n') {
        request = taken::<CopyRequest>(line).or(request);
        let parcel = taken::<Option<Vec<usize>>>(line).flatten();
        let answer = taken::<SpaceAnswer>(line);
        taken::<Option<CopyBegin>>(line);
        taken::<CopyAnswer>(line);
        taken::<HostId>(line);
        taken::<CopyCall>(line);
        taken::<CopyLinkAnswer>(line);
        taken::<CopyLinks>(line);
        taken::<QueuePosition>(line);
        taken::<ParcelAnswer>(line);
        taken::<Vec<Option<String>>>(line);
        let Some(request) = &request else { continue };
        if let Some(SpaceAnswer::Ready { held, .. }) = answer
            && request.fits(&held)
        {
            let files: Vec<u64> =
                request.entries.iter().filter_map(|entry| entry.file).map(|file| file.bytes).collect();
            assert!(held.iter().all(|(file, held)| *held <= files[*file].div_ceil(BLOCK_BYTES)));
        }
        if let Some(parcel) = parcel
            && let Some(ParcelKind::Together(bytes)) = request.parcel_kind(&parcel)
        {
            assert!(bytes as u64 <= 8 * BLOCK_BYTES && parcel.len() <= 1024);
        }
    }
}

fn taken<T: Serialize + DeserializeOwned>(line: &[u8]) -> Option<T> {
    let value = parse::<T>(line).ok()?;
    let written = serde_json::to_string(&value).expect("what came can be said");
    let again = serde_json::to_string(&parse::<T>(written.as_bytes()).expect("what is said is taken"));
    assert_eq!(written, again.expect("as before"));
    Some(value)
}

/// A copy of three entries.
pub fn seeds() -> Vec<Vec<u8>> {
    let file = |bytes| Some(FileEntry { bytes, modified_ns: -1 });
    let entry = |name: &str, file| CopyEntry { path: vec!["site".into(), name.into()], mode: 0o644, file };
    let entries = vec![entry("folder", None), entry("small", file(7)), entry("large", file(3 << 20))];
    let (copy, path, digest) = (CopyToken(u128::MAX), "new".into(), CopyDigest::Blake3);
    let request = CopyRequest { copy, path, into: true, entries, digest };
    let held = vec![HeldContent::SameTime, HeldContent::Other];
    let answer = CopyAnswer::Ready { held, digest: CopyDigest::Blake3 };
    let space = SpaceAnswer::Ready { held: vec![(1, 2)], failures: vec!["no permission".into()] };
    let hosts = vec!["192.0.2.1:7401".into()];
    let begin = Some(CopyBegin { hosts, rank: 1, transport: CopyTransport::Tcp });
    let judgements = vec![DigestVerdict::Good, DigestVerdict::Bad { message: "the disk is full".into() }];
    let waiting = QueuePosition::Waiting { copies: 1, source: "192.0.2.1:7401".into() };
    let written = [
        serde_json::to_string(&CopyCall::Control),
        serde_json::to_string(&CopyCall::Link { copy, rank: 2 }),
        serde_json::to_string(&CopyLinkAnswer::Accepted),
        serde_json::to_string(&CopyLinks::Made),
        serde_json::to_string(&CopyLinks::Failed { rank: 1, message: "no route".into() }),
        serde_json::to_string(&HostId(u128::MAX)),
        serde_json::to_string(&waiting),
        serde_json::to_string(&QueuePosition::First),
        serde_json::to_string(&request),
        serde_json::to_string(&answer),
        serde_json::to_string(&["ab", "cd"]),
        serde_json::to_string(&[0]),
        serde_json::to_string(&space),
        serde_json::to_string(&begin),
        serde_json::to_string(&Some([1])),
        serde_json::to_string(&ParcelAnswer::Judged(judgements)),
        serde_json::to_string(&ParcelAnswer::Failed { message: "the disk is full".into() }),
        serde_json::to_string(&SpaceAnswer::Refused { message: "no".into() }),
        serde_json::to_string(&CopyAnswer::Refused { message: "no".into() }),
    ];
    let written: Result<Vec<String>, _> = written.into_iter().collect();
    vec![written.expect("plain data").join("\n").into_bytes()]
}
