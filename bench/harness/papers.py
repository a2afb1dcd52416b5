"""The figures of the papers, drawn again from the tables in docs/results; and those that are not there."""

import json
import re
from pathlib import Path

from . import timeline
from .curves import Series, draw

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def table(page, heading):
    """The rows of the first table under a heading of a page: their cells by the names of the columns."""
    text = (RESULTS / page).read_text(encoding="utf-8")
    part = text[text.index(heading) :]
    lines = re.search(r"(?:^\|.*\n)+", part, re.M)[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row)) for row in cells[2:]]


def number(text, place=0):
    """A number of a cell such as `24.63 (63)` or `99.0 / 38.2`; `None` if it has none."""
    found = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)
    return float(found[place]) if len(found) > place else None


def column(rows, name, place=0):
    return [number(row[name], place) for row in rows]


def over(page, heading, axis, columns, title, note, is_log=False, place=0, published=None, limit=None):
    """A picture of some columns of a table over its first one. `columns` has the names in the picture by those in the table."""
    rows = table(page, heading)
    first = next(iter(rows[0]))
    series = [Series(shown, column(rows, name, place)) for name, shown in columns.items()]
    if limit:
        series.append(Series(limit, column(rows, limit), "limit"))
    if published:
        series.append(Series("the paper's text", [published.get(row[first]) for row in rows], "published"))
    return draw(title, note, axis, [row[first] for row in rows], series, is_log)


def exs_sends(which, title):
    """EXS's figure 11, of which each size has a curve."""
    rows = table("stream-sim.md", "## Figure 11")
    sizes, sends = list(dict.fromkeys(row["size"] for row in rows)), list(dict.fromkeys(row["sends"] for row in rows))
    value = {(row["size"], row["sends"]): number(row[which]) for row in rows}
    series = [Series(size, [value[size, count] for count in sends]) for size in sizes]
    return draw(title, f"{EXS}; 32 receives outstanding", "sends outstanding", sends, series)


def exs_outstanding():
    """EXS's figure 9: receives and sends together name a place."""
    rows = table("stream-sim.md", "## Figure 9")
    series = [Series(name, column(rows, name)) for name in ("direct", "indirect", "dynamic")]
    series.append(Series("the paper's protocol here", column(rows, "paper")))
    places = [f"{row['receives']}/{row['sends']}" for row in rows]
    return draw("EXS's figure 9: throughput by operations outstanding, Gb/s", EXS, "receives/sends outstanding", places, series)


def delayed_senders():
    """Spindle's figure 10, of which each delay is a place."""
    rows = table("spindle-sim.md", "## Delayed senders")
    places = ["none" if row["delay"] == "0 µs" else f"{row['delayed senders']} by {row['delay']}" for row in rows]
    series = [Series(name, column(rows, name), "points") for name in ("null-sends", "without null-sends")]
    return draw("Spindle's figure 10: messages/s of each prompt sender, 16 members", SPINDLE, "delayed senders", places, series, is_log=True)


def batches():
    """Spindle's figure 7 as means; its text has them for these numbers of subgroups, of which one is active."""
    rows = table("spindle-sim.md", "## Batches")
    first = next(iter(rows[0]))
    series = [Series(name, column(rows, name)) for name in ("send", "receive", "delivery")]
    series += [Series(f"{name}, the paper", column(rows, f"{name}, the paper"), "published") for name in ("send", "delivery")]
    note = f"{SPINDLE}; 16 members, all send 10 KB"
    return draw("Spindle's figure 7: messages in a batch, mean", note, first, [row[first] for row in rows], series, is_log=True)


def view_steps(view, title):
    """Derecho's figure 6, from the trace of a run on one machine."""
    trace = json.loads((RESULTS / "view-steps.json").read_text(encoding="utf-8"))
    return timeline.draw(title, "processes on two cores of one machine, which send as fast as they can; a bar begins with its step", trace, view)


SPINDLE = "the simulator's model of Spindle's testbed, virtual time"
RDMC = "the simulator's model of RDMC's clusters, virtual time, every link dedicated"
RAMCAST = "the simulator's model of RamCast's testbed, virtual time"
EXS = "the simulator's model of EXS's testbed, virtual time"
WINDOWS = {f"window {window}": f"window {window}" for window in (16, 100, 1000)}
SENDERS = {"all send": "all send", "half send": "half send", "one sends": "one sends", "all send, baseline": "all send, baseline"}
SIZES = {"256 MB": "256 MB", "64 MB": "64 MB", "8 MB": "8 MB"}
SHARES = {"all send": "all send", "half send": "half send", "one sends": "one sends"}
RAW = {"100 MB, all send": "100 MB, all send", "100 MB, half send": "100 MB, half send", "100 MB, one sends": "100 MB, one sends",
       "1 MB, all send": "1 MB, all send", "10 KB, all send": "10 KB, all send"}
SUBGROUPS = {name: name for name in ("1 subgroup", "2 subgroups", "5 subgroups", "10 subgroups", "10, baseline")}
PROFILES = {name: name for name in ("unordered", "atomic", "kept", "logged", "atomic, baseline")}
ALGORITHMS = {name: name for name in ("sequential", "tree", "chain", "pipeline")}
BLOCKS = {**SIZES, "4 MB": "4 MB"}
STREAMS = {"direct": "direct", "indirect": "indirect", "dynamic (direct part)": "dynamic", "paper here (direct part)": "the paper's protocol here"}

# By the name of the picture: the paper with its figures, the page of the result, and what draws it.
PAPERS = {
    "paper-derecho-small": ("Derecho, figure 2", "derecho-sim", lambda: over(
        "derecho-sim.md", "## Figure 2", "members", SENDERS, "Derecho's figure 2: raw messages of 1 byte, M messages/s per member", SPINDLE,
        is_log=True, published={"16": 2.0})),
    "paper-derecho-rdmc": ("Derecho, figure 3", "derecho-sim", lambda: over(
        "derecho-sim.md", "## Figure 3", "members", RAW, "Derecho's figure 3: raw RDMC, GB/s per member", RDMC)),
    "paper-derecho-atomic": ("Derecho, figure 4, 10 KB", "derecho-sim", lambda: over(
        "derecho-sim.md", "## Figure 4", "members", SENDERS, "Derecho's figure 4: atomic multicast of 10 KB, GB/s per member", SPINDLE,
        is_log=True)),
    "paper-derecho-join": ("Derecho, figure 6a, on one machine", "views", lambda: view_steps(2, "Derecho's figure 6a: a process joins")),
    "paper-derecho-crash": ("Derecho, figure 6b, on one machine", "views", lambda: view_steps(1, "Derecho's figure 6b: a member has crashed")),
    "paper-spindle-windows": ("Spindle, windows of 16, 100 and 1000 (beside figure 6)", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Windows", "members", WINDOWS, "Spindle's windows: all send 10 KB, GB/s per member", SPINDLE,
        published={"4": 9.7, "16": 9.7}, limit="line rate")),
    "paper-spindle-rates": ("Spindle, figure 4", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Sizes", "members", {size: size for size in ("1 B", "128 B", "1 KB", "10 KB")},
        "Spindle's figure 4: thousand messages/s delivered by each member, all send", SPINDLE, is_log=True)),
    "paper-spindle-batches": ("Spindle, figure 7", "spindle-sim", batches),
    "paper-spindle-nulls": ("Spindle, figure 11", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Null-sends", "members", {"with null-sends": "with null-sends", "without": "without"},
        "Spindle's figure 11: 10 KB, all send all the time, GB/s per member", SPINDLE)),
    "paper-spindle-active": ("Spindle, figure 13", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Active subgroups", "members", SUBGROUPS, "Spindle's figure 13: all send in all subgroups, GB/s per member",
        SPINDLE, is_log=True)),
    "paper-spindle-latency": ("Spindle, figure 17", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Latency", "members", SENDERS, "Spindle's figure 17: 10 KB, window 100, mean latency in µs", SPINDLE,
        is_log=True)),
    "paper-spindle-members": ("Spindle, figure 16", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Members and senders", "members", SENDERS, "Spindle's figure 16: 10 KB, window 100, GB/s per member", SPINDLE,
        is_log=True)),
    "paper-spindle-topics": ("Spindle, figure 18", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Topics", "subscribers", PROFILES, "Spindle's figure 18: one publisher, 10 KB, GB/s per subscriber", SPINDLE,
        is_log=True)),
    "paper-spindle-delays": ("Spindle, figure 10", "spindle-sim", delayed_senders),
    "paper-spindle-inactive": ("Spindle, figures 8, 9", "spindle-sim", lambda: over(
        "spindle-sim.md", "## Inactive", "inactive subgroups", {"all optimisations on": "all optimisations on", "baseline": "baseline"},
        "Spindle's figures 8, 9: GB/s per member of 16 in the active subgroup", SPINDLE, is_log=True)),
    "paper-rdmc-blocks-fractus": ("RDMC, figure 6, Fractus", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 6", "block", BLOCKS, "RDMC's figure 6: Fractus, 4 members, by the size of a block, Gb/s", RDMC)),
    "paper-rdmc-blocks-stampede": ("RDMC, figure 6, Stampede", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 6", "block", BLOCKS, "RDMC's figure 6: Stampede, 4 members, by the size of a block, Gb/s", RDMC, place=1)),
    "paper-rdmc-sierra": ("RDMC, figure 7", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 7", "members", SIZES, "RDMC's figure 7: Sierra, Gb/s", RDMC, published={"512": 6.0})),
    "paper-rdmc-stampede": ("RDMC, figure 8", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 8", "members", SIZES, "RDMC's figure 8: Stampede, Gb/s", RDMC)),
    "paper-rdmc-fractus": ("RDMC, figure 9", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 9", "members", SIZES, "RDMC's figure 9: Fractus, Gb/s", RDMC)),
    "paper-rdmc-algorithms-sierra": ("RDMC, figure 10", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 10", "members", ALGORITHMS, "RDMC's figure 10: Sierra, 256 MB, Gb/s", RDMC, is_log=True)),
    "paper-rdmc-algorithms-fractus": ("RDMC, figure 11, 256 MB", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 11a", "members", ALGORITHMS, "RDMC's figure 11: Fractus, 256 MB, Gb/s", RDMC)),
    "paper-rdmc-algorithms-fractus-8mb": ("RDMC, figure 11, 8 MB", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 11b", "members", ALGORITHMS, "RDMC's figure 11: Fractus, 8 MB, Gb/s", RDMC)),
    "paper-rdmc-latency": ("RDMC, figure 12", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 12", "members", {"pipeline": "pipeline", "sequential": "sequential"},
        "RDMC's figure 12: Sierra, 256 MB, milliseconds until the last member has it", RDMC, is_log=True)),
    "paper-rdmc-senders-40": ("RDMC, figure 13", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 13", "members", SHARES, "RDMC's figure 13: several senders on 40 Gb/s, 100 MB, Gb/s per member", RDMC)),
    "paper-rdmc-senders": ("RDMC, figure 14", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 14", "members", SHARES, "RDMC's figure 14: several senders on 100 Gb/s, 100 MB, Gb/s per member", RDMC)),
    "paper-rdmc-small": ("RDMC, figure 15", "rdmc-sim", lambda: over(
        "rdmc-sim.md", "## Figure 15", "members", {"thousand objects/s": "Squall"}, "RDMC's figure 15: thousand objects of 1 byte/s", RDMC)),
    "paper-exs-outstanding": ("EXS, figure 9", "stream-sim", exs_outstanding),
    "paper-exs-sends": ("EXS, figure 11, Squall's dynamic transfer", "stream-sim", lambda: exs_sends(
        "dynamic (direct part)", "EXS's figure 11: Squall's dynamic transfer, Gb/s by the size of a message")),
    "paper-exs-sends-paper": ("EXS, figure 11, the paper's protocol here", "stream-sim", lambda: exs_sends(
        "paper here (direct part)", "EXS's figure 11: the paper's protocol here, Gb/s by the size of a message")),
    "paper-exs-sizes": ("EXS, figure 12", "stream-sim", lambda: over(
        "stream-sim.md", "## Figure 12", "size of a message", STREAMS, "EXS's figure 12: 4 receives and 2 sends, Gb/s", EXS, is_log=True)),
    "paper-exs-delay": ("EXS, figure 13", "stream-sim", lambda: over(
        "stream-sim.md", "## Figure 13", "sends and receives outstanding", STREAMS, "EXS's figure 13: round trips of 48 ms, Gb/s", EXS)),
    "paper-ramcast-throughput": ("RamCast, figure 5, throughput to all groups", "ramcast-sim", lambda: over(
        "ramcast-sim.md", "## Figure 5, right", "groups of three", {"thousand messages/s": "Squall"},
        "RamCast's figure 5: thousand messages/s to all groups", RAMCAST, is_log=True,
        published={"1": 233, "2": 145, "4": 80, "8": 40})),
    "paper-ramcast-latency": ("RamCast, figure 5, latency to all groups", "ramcast-sim", lambda: over(
        "ramcast-sim.md", "## Figure 5, right", "groups of three",
        {"latency p95, µs": "Squall", "posts of 0.3 µs": "Squall, if a post takes 0.3 µs"},
        "RamCast's figure 5: microseconds of one client, 95th percentile", RAMCAST, is_log=True,
        published={"1": 8, "2": 46, "4": 78, "8": 150})),
    "paper-ramcast-growth": ("RamCast, what genuineness is worth", "ramcast-sim", lambda: over(
        "ramcast-sim.md", "## Growth", "shards of two", {name: name for name in ("to one shard", "to two shards", "one subgroup that all filter")},
        "Thousand messages/s of all members together", RAMCAST, is_log=True)),
}

# The figures of the papers that are not drawn, and why.
MISSING = [
    ("Derecho, 1 MB and 100 MB in figure 4", "the model of the testbed has either the order or RDMC, so it cannot order large messages; figure 3 has RDMC alone. One machine's rates are in [bulk multicast](rdmc.md)"),
    ("Derecho, table 1", "durable subgroups on SSDs that compress what they store: not run. The model's disk has one rate whatever the data; one machine's disk is in [durable subgroups](durable.md)"),
    ("Derecho, figure 5", "the bandwidth over time while a member joins or leaves, and the steps of one message of 200 MB: the model has no views, and it was not measured on one machine. How long members stall there is in [view changes](views.md), and [traces](../metrics.md) of members show the steps of sampled messages"),
    ("Derecho, figure 1", "a drawing of a design, no measurement"),
    ("Derecho, figure 7", "a drawing of an application, a cache in front of a store, which is not built"),
    ("Derecho, figures 8 to 10", "LibPaxos and ZooKeeper, not Derecho, on the testbed's Ethernet: neither was run. Others were measured in their place, on one machine ([multicast](multicast.md#tcp-over-the-loopback-interface), [durable subgroups](durable-peers.md))"),
    ("Derecho, §3.2", "two-phase commit, 2 M updates/s in a state table: `squall bench sst` measures a table, and has no page of results"),
    ("Spindle, figure 1", "the latency of the testbed's network: an input of the model"),
    ("Spindle, figure 2", "a drawing, no measurement"),
    ("Spindle, figure 3", "batching alone, with three patterns of senders: not run without null-sends"),
    ("Spindle, figure 5, latency", "the means are in the table of [its page](spindle-sim.md), and are not drawn; the throughput is"),
    ("Spindle, figure 6, windows of 5, 10, 50 and 500", "run with 16, 100 and 1000 only"),
    ("Spindle, figure 7, histograms", "means only: the model keeps no histograms"),
    ("Spindle, figures 8, 9, over the number of members", "run with 16 members only, by the number of inactive subgroups"),
    ("Spindle, figure 10, over the number of members, and half of the senders delayed by 1 ms", "run with 16 members, with one sender delayed and with half of them delayed by up to 100 µs. The case that is missing is the one that gets worse in the paper"),
    ("Spindle, figure 11, half and one sending", "run with all sending only"),
    ("Spindle, figure 12", "the ablation of synchronisation: there is no lock to switch on"),
    ("Spindle, figure 13, more than 10 subgroups", "run with up to 10 subgroups"),
    ("Spindle, figures 14, 15", "copies of messages: not run. The model charges a copy in figure 18 only, with one time for 10 KB"),
    ("Spindle, §3.5 and §4.1.1", "upcalls that take 1, 100 and 1000 µs, and times of posts and waits: not run; writes per message are in [its page](spindle-sim.md)"),
    ("RDMC, figures 1 to 3", "drawings of a design, no measurements"),
    ("RDMC, figures 4, 5", "the parts of one transfer (setup, copies, waiting) at two members: the model has no cost of setup or of a copy; the time of the whole transfer is in [its page](rdmc-sim.md)"),
    ("EXS, figure 10", "the receiver's processor: [its page](stream-sim.md) has one point, 8 receives and 4 sends; the others were not printed"),
    ("EXS, figure 11b, 12b", "the parts of direct transfers are in the tables of [its page](stream-sim.md), and are not drawn"),
    ("EXS, figures 1 to 8", "drawings and algorithms; the tests of figures 6 to 8 run them"),
    ("RamCast, figures 1 to 3", "the times of single operations on its testbed, the layout of memory, and the steps of its protocol: no measurements of a multicast"),
    ("RamCast, figure 4", "sizes of messages from 64 B to 32 KB: not run"),
    ("RamCast, figure 5, to a single group", "in a table of [its page](ramcast-sim.md), not drawn"),
    ("RamCast, figures 4 to 6, distributions", "the model gives medians and 95 %; distributions are not drawn"),
    ("RamCast, figure 6", "APUS, Mu and Kernel Paxos: not run; RamCast's own curve there was not drawn either"),
]
