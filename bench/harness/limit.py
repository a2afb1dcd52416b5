"""Squall on shared memory beside the bare program that does the same, in both states of the machine.

A virtual machine's cores may be *near* each other or *far*, for a minute or so: one message at a time takes the bare program 130 or 600 ns,
and rates differ by 1.5 to 4. A median over both means nothing, so only neighbouring runs of one state are compared."""

import dataclasses
import json
import pathlib
import statistics

from .case import LATENCY, THROUGHPUT, bytes_in_words, figure_in_words
from .process import BUILD, ROOT, Failed, json_of, run
from .rounds import say
from .squall import messages, window

# Of the bare program, one message of 64 bytes at a time.
NEAR_NS = 300


@dataclasses.dataclass(frozen=True)
class LimitCase:
    """`size` is a number of bytes, or any length between two at random, as in "8-512"."""

    kind: str
    members: int
    size: str
    transport: str = "shm"

    @property
    def longest(self) -> int:
        return int(self.size.split("-")[-1])

    @property
    def title(self) -> str:
        size = bytes_in_words(self.longest) if "-" not in self.size else f"{self.size.replace('-', ' to ')} B"
        what = "one at a time" if self.kind == LATENCY else "all sending"
        return f"{self.members} members on {self.transport}, {what}, {size}"


CASES = [
    *(LimitCase(THROUGHPUT, 2, size) for size in ("8", "64", "1024", "10240", "8-512")),
    *(LimitCase(LATENCY, 2, size) for size in ("64", "10240")),
    *(LimitCase(THROUGHPUT, members, "64") for members in (3, 4)),
    *(LimitCase(THROUGHPUT, 2, size, "tcp") for size in ("8", "64", "1024", "8-512")),
]


def build() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    run(["cc", "-O3", "-march=native", "-o", BUILD / "multicast", ROOT / "bench" / "limits" / "multicast.c"])


def state() -> str:
    """Whether the cores are near each other or far."""
    return "near" if bare(LimitCase(LATENCY, 2, "64")) < NEAR_NS else "far"


def bare(case: LimitCase) -> float:
    latency = case.kind == LATENCY
    count = messages(case.longest, latency, 40.0)
    result = json_of(run([BUILD / "multicast", case.members, case.size, count, window(case.longest), 1, int(latency)]))
    return result["latency_ns"]["p50"] if latency else result["messages_per_second"]


def squall(binary: str, case: LimitCase) -> float:
    latency = case.kind == LATENCY
    command = [binary, "bench", "multicast", "--transport", case.transport, "--members", case.members, "--encryption", "off"]
    command += ["--senders", "one" if latency else "all", "--size", case.size, "--window", window(case.longest), "--json"]
    command += ["--messages", messages(case.longest, latency, 40.0 if case.transport == "shm" else 4.0)]
    result = json_of(run(command + (["--latency"] if latency else [])))
    return result["latency_ns"]["p50"] if latency else result["messages_per_second"]


def pair(binary: str, case: LimitCase, is_first: bool) -> tuple[float, float | None]:
    """Figures of Squall and of the bare program; the latter has no network."""
    if case.transport != "shm":
        return squall(binary, case), None
    if is_first:
        return squall(binary, case), bare(case)
    limit = bare(case)
    return squall(binary, case), limit


def play(binary: str, cases: list[LimitCase], runs: int) -> list[dict]:
    """Pairs of runs, each with the state of the machine; none if that changed meanwhile."""
    found, failed = [], 0
    for number in range(runs):
        for case in cases:
            try:
                before = state()
                ours, limit = pair(binary, case, number % 2 == 0)
                after = state()
            except Failed as error:
                say(f"round {number + 1}/{runs}  {case.title} FAILED: {error}")
                failed += 1
                continue
            words = f"{figure_in_words(case.kind, ours)}, limit {figure_in_words(case.kind, limit)}"
            say(f"round {number + 1}/{runs}  {case.title:45} {words}  {before if before == after else 'changed: left out'}")
            if before == after:
                found.append({**dataclasses.asdict(case), "title": case.title, "state": before, "squall": ours, "limit": limit})
    if failed:
        raise Failed(f"{failed} runs have failed")
    return found


def table(found: list[dict]) -> str:
    """A line for each case and state, with the median of the ratios of its pairs: above 1 Squall is better."""
    lines = ["| case | cores | pairs | squall | bare program | ratio |", "|---|---|---|---|---|---|"]
    for title, cores in dict.fromkeys((one["title"], one["state"]) for one in sorted(found, key=lambda one: one["state"], reverse=True)):
        pairs = [one for one in found if (one["title"], one["state"]) == (title, cores)]
        kind, has_limit = pairs[0]["kind"], pairs[0]["transport"] == "shm"
        ours, rest = statistics.median(one["squall"] for one in pairs), "– | –"
        if has_limit:
            times = [one["limit"] / one["squall"] if kind == LATENCY else one["squall"] / one["limit"] for one in pairs]
            rest = f"{figure_in_words(kind, statistics.median(one['limit'] for one in pairs))} | {statistics.median(times):.2f}"
        lines.append(f"| {title} | {cores} | {len(pairs)} | {figure_in_words(kind, ours)} | {rest} |")
    return "\n".join(lines) + "\n"


def save(folder: pathlib.Path, name: str, about: str, found: list[dict], where: dict) -> None:
    """Writes NAME.md and NAME.json into `folder` and prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = table(found)
    text = f"# Squall on shared memory against the limit of the machine\n\n{about}\n\n{lines}"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps({**where, "pairs": found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(lines)
