//! Flight records: what a member has noticed lately, kept always, for the time after something has gone wrong (Derecho §3.4).
//!
//! The polling thread copies its recorder ([`squall_protocols::group::FlightRecorder`]) here when there is something new, which is a
//! few times in a view and never on the path of a message. Others read the copy: `/trace` over HTTP, [`crate::Group::flight_record`],
//! and the file that the configuration names (`flight_record`), which is written when the group ends here, also after a panic of the
//! polling thread. `squall trace` asks the polling threads of all members.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use squall_transports::bootstrap::BootstrapError;

use crate::config::{Address, Config};
use crate::error::JoinError;
use crate::flight_record::FlightRecord;
use crate::operate::{inquiry, trace};

/// Asks the member that listens at `address` for its flight record. Of `config`, only the cluster, its secret and the transport
/// matter.
///
/// ```
/// # use squall::config::SubgroupConfig;
/// # use squall::{Config, Group};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = Config::local(&format!("doc-ask-flight-{}", std::process::id()), 1).subgroup("log", SubgroupConfig::default());
/// # let _group = Group::join(config.clone())?;
/// let record = squall::ask_flight_record(&config, &config.listen)?; // from any process with the secret
/// std::fs::write(std::env::temp_dir().join("member.json"), squall::trace::of_records(&[record]))?;
/// # std::fs::remove_file(std::env::temp_dir().join("member.json"))?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`BootstrapError`], with what to do next.
pub fn ask_flight_record(config: &Config, address: &Address) -> Result<FlightRecord, BootstrapError> {
    inquiry::ask(&config.plan(), address, &inquiry::StatusQuestion::Flight)
}

/// Checks that a flight record can be written to `file` later, when it is too late to correct anything.
pub(crate) fn check_file(file: &Path) -> Result<(), JoinError> {
    let cannot = |cause| JoinError::FlightRecord { file: file.into(), cause };
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(file).map(drop).map_err(cannot)
}

/// Writes a flight record as a trace. If `file` has one, it becomes `FILE.old`: a member that is started again and ends once more does
/// not replace the record of its first end at once.
pub(crate) fn write(file: &Path, record: &FlightRecord) -> std::io::Result<()> {
    if std::fs::metadata(file).is_ok_and(|found| found.len() > 0) {
        let mut old = file.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(file, old)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(FILE_MODE);
    options.open(file)?.write_all(trace::of_records(std::slice::from_ref(record)).as_bytes())
}

/// Of a file that is made: what a member has noticed is for its user alone.
const FILE_MODE: u32 = 0o600;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The record of the end before is kept beside the new one.
    #[test]
    fn a_file_keeps_the_record_before() {
        let folder = std::env::temp_dir().join(format!("squall-flight-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("flight.json");
        check_file(&file).unwrap();
        let mut record = FlightRecord::default();
        for rank in [1, 2, 3] {
            record.rank = rank;
            write(&file, &record).unwrap();
        }
        for name in ["flight.json", "flight.json.old"] {
            let mode = std::fs::metadata(folder.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o600, "{name} is for its user alone");
        }
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(read("flight.json").contains("rank 3") && read("flight.json.old").contains("rank 2"));
        let error = check_file(&folder.join("missing/flight.json")).unwrap_err();
        assert!(error.to_string().contains("missing/flight.json"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
