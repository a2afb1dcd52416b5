//! `squall recover --from`: the log of a member takes what it lacks from the folders of others.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;
use squall::Config;
use squall::recovery::{LogMerge, MissingRange, SubgroupMerge, TakenPart, expected_merge, merge_logs};
use squall_harness::terminal::{CommandVerdict, output, units};

pub(super) fn run(config: &Config, from: &[PathBuf], yes: bool, as_json: bool) -> Result<CommandVerdict> {
    let merge = if yes { merge_logs(config, from)? } else { expected_merge(config, from)? };
    if as_json {
        output::json(&summary(&merge, yes))?;
    } else {
        print(&merge, yes);
    }
    Ok(if merge.is_whole { CommandVerdict::Good } else { CommandVerdict::Bad })
}

fn summary(merge: &LogMerge, is_done: bool) -> serde_json::Value {
    let part = |part: &TakenPart| {
        json!({
            "folder": part.folder,
            "view": part.view,
            "from": part.from,
            "to": part.to,
            "messages": part.messages,
            "checkpoint": part.is_checkpoint,
        })
    };
    let position = |(view, sequence): (u64, u64)| json!({ "view": view, "sequence": sequence });
    let range = |range: &MissingRange| json!({ "from": position(range.from), "to": position(range.to) });
    let subgroup = |(name, of): (&String, &SubgroupMerge)| {
        let taken: Vec<_> = of.taken.iter().map(part).collect();
        let missing: Vec<_> = of.missing.iter().map(range).collect();
        (name.clone(), json!({ "taken": taken, "missing": missing }))
    };
    let subgroups: serde_json::Map<_, _> = merge.subgroups.iter().map(subgroup).collect();
    let others: Vec<_> = merge
        .others
        .iter()
        .map(|other| {
            json!({
                "folder": other.folder,
                "node": other.node.0,
                "view": other.view,
                "damaged": other.is_damaged,
                "end_known": other.is_end_known,
            })
        })
        .collect();
    json!({
        "folder": merge.folder,
        "view": merge.view,
        "node": merge.node.0,
        "damaged": merge.was_damaged,
        "end_known": merge.is_end_known,
        "others": others,
        "subgroups": subgroups,
        "whole": merge.is_whole,
        "done": is_done,
    })
}

fn print(merge: &LogMerge, is_done: bool) {
    let damaged = |is_damaged: bool| if is_damaged { "damaged" } else { "not damaged" };
    output::line(format_args!(
        "the log in {} goes up to view {}, and {} {}",
        merge.folder.display(),
        merge.view,
        if is_done { "was" } else { "is" },
        damaged(merge.was_damaged)
    ));
    for other in &merge.others {
        output::line(format_args!(
            "the log in {}, of {}, goes up to view {}, and is {}",
            other.folder.display(),
            other.node,
            other.view,
            damaged(other.is_damaged)
        ));
    }
    for (name, of) in &merge.subgroups {
        of.taken.iter().for_each(|part| print_part(name, part, is_done));
        for MissingRange { from, to, .. } in &of.missing {
            output::line(format_args!(
                "{name}: missing in all folders from {}/{} up to the one before {}/{}",
                from.0, from.1, to.0, to.1
            ));
        }
    }
    if merge.subgroups.values().all(|of| of.taken.is_empty()) {
        output::line("the other folders have nothing that this log lacks");
    }
    output::line(next_step(merge));
    if !is_done {
        output::line("nothing was changed: end this member, and use --yes");
    }
}

fn print_part(name: &str, part: &TakenPart, is_done: bool) {
    let TakenPart { folder, view, from, to, messages, .. } = part;
    let takes = if is_done { "has taken" } else { "would take" };
    let folder = folder.display();
    if part.is_checkpoint {
        output::line(format_args!(
            "{name}: {takes} a checkpoint from {folder}, in place of everything before {view}/{to}"
        ));
    } else {
        output::line(format_args!(
            "{name}: {takes} {} from {folder}, from {view}/{from} up to the one before {view}/{to}",
            units::things(*messages, "message")
        ));
    }
}

/// What to do then.
fn next_step(merge: &LogMerge) -> String {
    if merge.is_whole {
        return format!(
            "with that the log has everything that it ever had: start the members, and the group restarts when a majority of view {} is there",
            merge.view
        );
    }
    let missing = merge.subgroups.values().flat_map(|of| &of.missing);
    let again = "repeat this with the folders of further members, or with older copies";
    if missing.clone().any(|range| range.to.0 < merge.view) {
        return format!(
            "what is missing was delivered in views that have ended, and no member can do without it: {again}; `squall log dump` prints what \
             this log has"
        );
    }
    if missing.count() > 0 {
        return format!(
            "what is missing may have been delivered: {again}; if there are none, `squall recover --accept-loss` continues without it"
        );
    }
    let better = merge.others.iter().find(|other| other.is_end_known && other.view == merge.view);
    match better {
        Some(other) => format!(
            "the end of this log is damaged, and it may have had more. That in {} shows how far it went: mend that one, at its member, and give \
             this one with --from",
            other.folder.display()
        ),
        None => format!(
            "the end of this log is damaged, and it may have had more: {again}; if there are none, `squall recover --accept-loss` continues \
             from what it has"
        ),
    }
}
