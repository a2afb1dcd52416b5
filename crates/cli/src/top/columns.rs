//! The columns of the table, and which of them a terminal has space for.

use squall_harness::terminal::{table, units};

use super::{GroupActivity, MemberActivity};
use crate::commands::status::WaitedMember;

/// A column, with a cell for each member.
struct TopColumn {
    head: &'static str,
    /// The place in the order in which columns are left out where space is scarce, the greatest first; 0: it is always there.
    spare: u8,
    cells: Vec<String>,
}

/// The table, whose first row is the heading, in at most `width` columns of characters, if that is possible; and the headings of
/// what it has no space for, with the width that all of it would take.
pub(crate) fn rows(activity: &GroupActivity, width: usize) -> (Vec<Vec<String>>, Option<LeftOut>) {
    let mut columns = columns(activity);
    let mut left_out = None;
    loop {
        let rows = rows_of(&columns, activity.members.len());
        let taken = table::width(&rows);
        let most = columns.iter().enumerate().max_by_key(|(_, column)| column.spare);
        let Some((place, _)) = most.filter(|(_, column)| taken > width && column.spare > 0) else {
            return (rows, left_out);
        };
        let left = left_out.get_or_insert_with(|| LeftOut { heads: Vec::new(), width: taken });
        left.heads.insert(0, columns.remove(place).head);
    }
}

/// The columns that a table has no space for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub(crate) heads: Vec<&'static str>,
    /// The width of the whole table in characters.
    pub(crate) width: usize,
}

fn rows_of(columns: &[TopColumn], members: usize) -> Vec<Vec<String>> {
    let heads = columns.iter().map(|column| column.head.to_owned()).collect();
    let row = |member: usize| columns.iter().map(|column| column.cells[member].clone()).collect();
    std::iter::once(heads).chain((0..members).map(row)).collect()
}

/// All columns that have something to show.
fn columns(activity: &GroupActivity) -> Vec<TopColumn> {
    let members = &activity.members;
    let column = |head, spare, cell: &dyn Fn(&MemberActivity) -> String| TopColumn {
        head,
        spare,
        cells: members.iter().map(cell).collect(),
    };
    let mut columns = vec![
        column("address", 0, &|member| member.address.clone()),
        column("rank", 1, &|member| shown(member.rank, |rank| rank.to_string())),
        column("view", 3, &|member| shown(member.view, |view| view.to_string())),
        column("state", 0, &|member| member.state.into()),
        column("sent/s", 2, &|member| shown(member.sent_per_second, units::count)),
        column("deliv/s", 2, &|member| shown(member.delivered_per_second, units::count)),
        column("p99", 5, &|member| shown(member.latency_p99_nanos, units::nanos)),
        column("lag", 4, &|member| shown(member.lag, |lag| lag.to_string())),
        column("window", 6, &|member| shown(member.window_used, percent)),
        column("full", 8, &|member| shown(member.window_full, percent)),
    ];
    let has = |value: &dyn Fn(&MemberActivity) -> bool| members.iter().any(value);
    if has(&|member| member.unpersisted.is_some()) {
        columns.push(column("to disk", 7, &|member| shown(member.unpersisted, |count| count.to_string())));
    }
    if has(&|member| member.log_bytes_per_second.is_some()) {
        columns.push(column("log/s", 9, &|member| shown(member.log_bytes_per_second, units::bytes)));
    }
    if has(&|member| member.peers_sent_bytes_per_second.is_some()) {
        columns.push(column("out/s", 10, &|member| shown(member.peers_sent_bytes_per_second, units::bytes)));
    }
    if has(&|member| member.peers_received_bytes_per_second.is_some()) {
        columns
            .push(column("in/s", 11, &|member| shown(member.peers_received_bytes_per_second, units::bytes)));
    }
    let each = |member: &MemberActivity, shown: &dyn Fn(&WaitedMember) -> String| {
        member.waits_for.iter().map(shown).collect::<Vec<_>>().join(",")
    };
    columns.push(column("waits", 0, &|member| each(member, &|waited| waited.rank.to_string())));
    if has(&|member| !member.waits_for.is_empty()) {
        columns.push(column("why", 7, &|member| each(member, &|waited| waited.cause.clone())));
    }
    columns
}

fn shown<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_group_is_shown_in_eighty_columns() {
        let (rows, left_out) = rows(&example(), 80);
        assert_eq!(
            table::lines(&rows),
            [
                "address         rank  view   state  sent/s  deliv/s     p99  lag  window  waits",
                "192.0.2.1:7400     1     3   ready  12.3 k   36.9 k  262 µs    0    93 %      2",
                "192.0.2.2:7400     2     3   ready  12.3 k   36.9 k  262 µs   17    93 %",
                "192.0.2.3:7400     -     -  silent       -        -       -    -       -",
            ]
        );
        assert_eq!(left_out, Some(LeftOut { heads: vec!["why", "full", "out/s", "in/s"], width: 109 }));
    }

    /// A narrow terminal shows fewer columns, each of them whole.
    #[test]
    fn a_narrow_terminal_leaves_columns_out() {
        let (narrow, left_out) = rows(&example(), 60);
        assert_eq!(
            table::lines(&narrow)[..2],
            [
                "address         rank  view   state  sent/s  deliv/s  waits",
                "192.0.2.1:7400     1     3   ready  12.3 k   36.9 k      2",
            ]
        );
        let heads = vec!["lag", "p99", "window", "why", "full", "out/s", "in/s"];
        assert_eq!(left_out.map(|left| left.heads), Some(heads));
        let (narrowest, _) = rows(&example(), 10);
        assert_eq!(table::lines(&narrowest)[1], "192.0.2.1:7400   ready      2");
    }

    #[test]
    fn a_wider_terminal_shows_what_waits_and_what_is_carried() {
        let (all, left_out) = rows(&example(), 109);
        assert_eq!(
            table::lines(&all)[..2],
            [
                "address         rank  view   state  sent/s  deliv/s     p99  lag  window  full    out/s     in/s  waits   why",
                "192.0.2.1:7400     1     3   ready  12.3 k   36.9 k  262 µs    0    93 %  25 %  41.0 MB  20.0 MB      2  disk",
            ]
        );
        assert_eq!(left_out, None);
        let (_, left_out) = rows(&example(), 108);
        assert_eq!(left_out.map(|left| left.heads), Some(vec!["in/s"]), "what matters least is left out");
    }

    #[test]
    fn a_log_has_columns_where_there_is_one() {
        let mut activity = example();
        activity.members[0].unpersisted = Some(3);
        activity.members[0].log_bytes_per_second = Some(1.5e6);
        let (rows, _) = rows(&activity, usize::MAX);
        let lines = table::lines(&rows);
        assert!(lines[0].contains("full  to disk    log/s    out/s"), "{lines:#?}");
        assert!(lines[1].contains("25 %        3  1.50 MB  41.0 MB"), "{lines:#?}");
        assert!(lines[2].contains("25 %        -        -  41.0 MB"), "{lines:#?}");
        let narrow = super::rows(&activity, 80).0;
        assert_eq!(table::lines(&narrow)[0].len(), 79, "without it the rest would be cut");
    }
}
