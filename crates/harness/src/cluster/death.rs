//! How a group ended before its work was done.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use super::process::MemberProcess;

/// Which members died, and what the others reported.
#[derive(Debug)]
pub(crate) struct MemberDeaths {
    /// One line for each member: first those that died, then those that noticed.
    lines: Vec<String>,
}

impl MemberDeaths {
    /// Of the members as they are now.
    pub(super) fn of(processes: &mut [MemberProcess]) -> Self {
        // Those that are done have ended as they were asked to.
        let members = processes.iter_mut().enumerate().filter(|(_, process)| !process.done);
        let members = members.map(|(rank, process)| {
            let status = process.status();
            (rank, process.pid(), status, process.last_words.clone())
        });
        Self::of_reports(members.collect())
    }

    fn of_reports(members: Vec<(usize, u32, Option<ExitStatus>, Option<String>)>) -> Self {
        let (mut died, mut reported) = (Vec::new(), Vec::new());
        for (rank, pid, status, last_words) in members {
            let name = format!("member {rank} (pid {pid})");
            match (last_words, status) {
                (Some(words), _) => reported.push(format!("{name} ended: {words}")),
                (None, Some(status)) => died.push(format!("{name} died: {}", cause(status))),
                (None, None) => {}
            }
        }
        died.extend(reported);
        Self { lines: died }
    }
}

impl fmt::Display for MemberDeaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for MemberDeaths {}

fn cause(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "killed (signal 9)".into(),
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, code) => format!("exit status {}", code.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_died_comes_before_who_noticed() {
        let killed = ExitStatus::from_raw(9);
        let failed = ExitStatus::from_raw(1 << 8);
        let death = MemberDeaths::of_reports(vec![
            (0, 100, Some(failed), Some("member 2 is gone".into())),
            (1, 101, None, None),
            (2, 102, Some(killed), None),
            (3, 103, Some(ExitStatus::from_raw(101 << 8)), None),
        ]);
        let expected = "member 2 (pid 102) died: killed (signal 9)\n\
                        member 3 (pid 103) died: exit status 101\n\
                        member 0 (pid 100) ended: member 2 is gone";
        assert_eq!(death.to_string(), expected);
    }
}
