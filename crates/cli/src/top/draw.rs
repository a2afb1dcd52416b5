//! Draws what the members do on a terminal.

use console::measure_text_width;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

use super::columns::{LeftOut, rows};
use super::{GroupActivity, change_lines};

/// What is on the screen.
#[derive(Debug)]
pub(crate) struct TopScreen {
    /// The cluster, and how often its members are asked.
    pub(crate) title: String,
    /// What the members do; the reason, if none answers; `None`: there is no answer yet.
    pub(crate) activity: Option<Result<GroupActivity, String>>,
    /// The number of members above the first one that is shown.
    pub(crate) skipped: usize,
}

/// Draws the screen: title, members, view changes, keys.
pub(crate) fn draw(screen: &TopScreen, frame: &mut Frame<'_>) {
    let area = frame.area();
    let members = match &screen.activity {
        Some(Ok(activity)) => u16::try_from(activity.members.len()).unwrap_or(u16::MAX),
        _ => 0,
    };
    // The changes need a few lines below the members, however many there are.
    let parts = [
        Constraint::Length(1),
        Constraint::Max(members.saturating_add(2)),
        Constraint::Min(4),
        Constraint::Length(1),
    ];
    let [head, table, below, foot] = Layout::vertical(parts).areas(area);
    let mut keys = "q ends, ↑ and ↓ move".to_owned();
    frame.render_widget(Line::from(screen.title.as_str()).bold(), head);
    match &screen.activity {
        None => frame.render_widget(Line::from("waiting for answers..."), below),
        Some(Err(reason)) => {
            let text = Paragraph::new(reason.as_str()).wrap(Wrap { trim: false }).fg(Color::Red);
            frame.render_widget(text, below);
        }
        Some(Ok(activity)) => {
            let (rows, left_out) = rows(activity, area.width.into());
            if let Some(LeftOut { heads, width }) = left_out {
                let more = format!("{keys}; {} in {width} columns", heads.join(", "));
                let fits = measure_text_width(&more) <= area.width.into();
                keys = if fits { more } else { format!("{keys}; more in {width} columns") };
            }
            let members = member_table(activity, rows, screen.skipped);
            frame.render_widget(members, table.inner(Margin::new(0, 0)));
            let mut lines: Vec<Line<'_>> = activity
                .members
                .iter()
                .filter_map(|member| Some(Line::from(member.error.clone()?).fg(Color::Red)))
                .collect();
            lines.push(Line::from("View changes").bold());
            lines.extend(change_lines(activity).into_iter().map(Line::from));
            frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), below);
        }
    }
    frame.render_widget(Line::from(keys).dim(), foot);
}

fn member_table(activity: &GroupActivity, rows: Vec<Vec<String>>, skipped: usize) -> Table<'static> {
    let mut rows = rows.into_iter();
    let head = rows.next().unwrap_or_default();
    let mut widths: Vec<usize> = head.iter().map(|cell| measure_text_width(cell)).collect();
    let body: Vec<Vec<String>> = rows.collect();
    for row in &body {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = measure_text_width(cell).max(*width);
        }
    }
    let skipped = skipped.min(body.len().saturating_sub(1));
    let line = |row: Vec<String>| {
        let cells = row.into_iter().zip(&widths).enumerate();
        Row::new(cells.map(|(column, (cell, width))| {
            let space = " ".repeat(width - measure_text_width(&cell));
            Cell::new(if column == 0 { format!("{cell}{space}") } else { format!("{space}{cell}") })
        }))
    };
    let styled = body.into_iter().zip(&activity.members).skip(skipped).map(|(row, member)| {
        let style = match member.state {
            "ready" if member.waits_for.is_empty() => Style::new(),
            "silent" => Style::new().fg(Color::Red),
            _ => Style::new().fg(Color::Yellow),
        };
        line(row).style(style)
    });
    let styled: Vec<Row<'_>> = styled.collect();
    let head = line(head).style(Style::new().add_modifier(ratatui::style::Modifier::REVERSED));
    let columns = widths.iter().map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    Table::new(styled, columns).header(head).column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn drawn(screen: &TopScreen) -> Vec<String> {
        drawn_in(screen, 80)
    }

    fn drawn_in(screen: &TopScreen, width: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, 10)).expect("it is in memory");
        terminal.draw(|frame| draw(screen, frame)).expect("it can be drawn");
        let buffer = terminal.backend().buffer();
        let symbols: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        symbols.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn members_and_their_faults_are_on_the_screen() {
        let mut screen = TopScreen {
            title: "squall top: demo".into(),
            activity: Some(Ok(super::super::example())),
            skipped: 0,
        };
        let lines = drawn(&screen);
        assert_eq!(lines[0], "squall top: demo");
        assert!(lines[1].starts_with("address         rank  view"), "{lines:#?}");
        assert!(lines[2].starts_with("192.0.2.1:7400     1     3") && lines[2].ends_with("93 %      2"));
        assert!(lines.iter().any(|line| line == "no answer from 192.0.2.3:7400 within 1.5s"), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "View changes"), "{lines:#?}");
        assert_eq!(lines[9], "q ends, ↑ and ↓ move; why, full, out/s, in/s in 109 columns");
        let narrow = drawn_in(&screen, 60);
        assert!(narrow[2].starts_with("192.0.2.1:7400     1     3   ready"), "{narrow:#?}");
        assert_eq!(narrow[9], "q ends, ↑ and ↓ move; more in 109 columns");
        screen.skipped = 1;
        assert!(drawn(&screen)[2].starts_with("192.0.2.2:7400"));
        screen.skipped = 100;
        assert!(drawn(&screen)[2].starts_with("192.0.2.3:7400"), "the last one stays");
    }

    #[test]
    fn without_an_answer_the_reason_is_on_the_screen() {
        let screen =
            TopScreen { title: String::new(), activity: Some(Err("no member answers".into())), skipped: 0 };
        assert!(drawn(&screen).iter().any(|line| line == "no member answers"));
    }
}
