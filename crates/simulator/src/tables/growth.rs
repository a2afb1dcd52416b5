//! The table of docs/results/growth.md: what a calm group costs, by the number of its members and of its subgroups (Derecho §2). It is
//! measured, not predicted.

use squall_protocols::membership::{MembershipRow, SenderSegment};

use super::{TablePage, TableSet};
use crate::large::{CalmCost, calm_cost};

pub(super) const SET: TableSet = TableSet {
    name: "growth",
    about: "what a calm group of many members or subgroups costs, measured on this machine",
    tables: &[("calm", calm)],
};

fn calm(page: &mut TablePage<'_>) {
    page.table(
        "What a calm group costs",
        "members | subgroups | idle evaluation, ns | message and receiver, ns | rows of the view, KiB",
    );
    let by_members = [2, 4, 8, 16, 32, 64, 128, 256].map(|members| (members, 1));
    let by_subgroups = [4, 16, 64, 256, 1000].map(|subgroups| (4, subgroups));
    for (members, subgroups) in by_members.into_iter().chain(by_subgroups) {
        let CalmCost { idle, delivery } = calm_cost(members, subgroups, page.clock);
        page.row(format_args!("{members} | {subgroups} | {idle:.0} | {delivery:.0} | {}", rows_kib(members)));
    }
    for members in [512, 1024] {
        page.row(format_args!("{members} | 1 | | | {}", rows_kib(members)));
    }
}

/// Returns the memory that a member has for the rows of its view.
fn rows_kib(members: u32) -> usize {
    let ranks = (0..members as usize).collect();
    let one =
        SenderSegment { counts: 0, trims: 0, senders: 1, ranks, durable: None, quorum: members as usize };
    8 * MembershipRow::new(members as usize, &[one], 0).words * members as usize / 1024
}
