//! Which member does which job. All members decide the same, since they see the same messages and views in the same order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

// ANCHOR: messages
/// What members send each other.
#[derive(Debug, Serialize, Deserialize)]
pub enum JobMessage {
    /// The sender has a job, which has this number among its own: the least divisor of an integer is wanted.
    Job { number: u64, integer: u64 },
    /// The sender has done a job.
    Done { job: JobId, result: u64 },
}

/// The member that has sent a job, by its node number, which no other process ever gets; and the number that it gave the job.
pub type JobId = (u32, u64);
// ANCHOR_END: messages

// ANCHOR: state
/// The open jobs, as far as this member has seen them come.
#[derive(Debug, Default)]
pub struct OpenJobs {
    /// The nodes of the view.
    members: Vec<u32>,
    /// How many jobs came in this view.
    came: usize,
    jobs: BTreeMap<JobId, OpenJob>,
}

#[derive(Debug)]
struct OpenJob {
    integer: u64,
    /// The node that does it.
    node: u32,
    /// The nodes that have seen it come, which are those of the view of then, beginning with the one that did it first.
    witnesses: Vec<u32>,
}

impl OpenJobs {
    /// Takes the nodes of the next view. A job of a member that is gone goes to the first of its witnesses that is still there: all
    /// members that know the job decide the same, whatever other jobs they know. Returns these jobs and who does them now.
    pub fn handle_view(&mut self, members: Vec<u32>) -> Vec<(JobId, u32)> {
        (self.members, self.came) = (members, 0);
        let mut given = Vec::new();
        for (job, open) in self.jobs.iter_mut().filter(|(_, open)| !self.members.contains(&open.node)) {
            if let Some(next) = open.witnesses.iter().find(|node| self.members.contains(node)) {
                open.node = *next;
                given.push((*job, *next));
            }
        }
        given
    }

    /// Takes a job; returns the node that does it: each member in its turn.
    pub fn handle_job(&mut self, job: JobId, integer: u64) -> u32 {
        let mut witnesses = self.members.clone();
        witnesses.rotate_left(self.came % self.members.len());
        self.came += 1;
        let node = witnesses[0];
        self.jobs.insert(job, OpenJob { integer, node, witnesses });
        node
    }

    /// Forgets a job that is done. Returns whether it was open here: a member does not know the jobs from before it joined.
    pub fn handle_done(&mut self, job: JobId) -> bool {
        self.jobs.remove(&job).is_some()
    }

    /// Returns the integer of an open job.
    pub fn integer(&self, job: JobId) -> Option<u64> {
        self.jobs.get(&job).map(|open| open.integer)
    }
}
// ANCHOR_END: state

/// Does the work of a job.
pub fn least_divisor(integer: u64) -> u64 {
    (2..)
        .take_while(|divisor| divisor * divisor <= integer)
        .find(|divisor| integer.is_multiple_of(*divisor))
        .unwrap_or(integer)
}
