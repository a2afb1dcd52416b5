"""The three policies of a stream in turn, in random order: figures 9 and 12 and table III of EXS, measured."""

import pathlib
import random
import statistics
from dataclasses import dataclass

from .process import json_of, run

POLICIES = ("direct", "indirect", "dynamic")


@dataclass(frozen=True)
class Point:
    """One line of a table: how long messages are and how many operations are outstanding."""

    transport: str
    size: str
    receives: int
    sends: int
    messages: int


def points(transport: str) -> list[Point]:
    """Exponential sizes by outstanding operations (figure 9), and fixed sizes at 4 receives and 2 sends (figure 12)."""
    few = transport == "tcp"
    pairs = [(1, 1), (4, 4), (16, 16), (2, 1), (4, 2), (8, 4), (32, 16)]
    exponential = [Point(transport, "exp:1MiB", receives, sends, 3000) for receives, sends in pairs]
    volume = (1 << 27) if few else (1 << 30)
    sizes = [512, 1024, 2048, 4096, 32 << 10, 256 << 10, 2 << 20]
    return exponential + [Point(transport, str(size), 4, 2, min(400_000, volume // size)) for size in sizes]


def once(binary: pathlib.Path, point: Point, policy: str) -> dict:
    command = [binary, "bench", "stream", "--json", "--ring", "16MiB", "--policy", policy]
    command += ["--transport", point.transport, "--size", point.size, "--messages", point.messages]
    command += ["--outstanding-receive", point.receives, "--outstanding-send", point.sends]
    return json_of(run(command))


def measure(binary: pathlib.Path, point: Point, rounds: int) -> str:
    """A line of the table. Ratios are medians of the ratios within one round, which the machine's moods touch least."""
    found: dict[str, list[dict]] = {policy: [] for policy in POLICIES}
    for _ in range(rounds):
        for policy in random.sample(POLICIES, len(POLICIES)):
            found[policy].append(once(binary, point, policy))
    speeds = {policy: [outcome["bytes_per_second"] / 1e9 for outcome in runs] for policy, runs in found.items()}
    medians = " | ".join(f"{statistics.median(speeds[policy]):.2f}" for policy in POLICIES)
    of_better = min(
        statistics.median(own / other for own, other in zip(speeds["dynamic"], speeds[policy], strict=True))
        for policy in ("direct", "indirect")
    )
    switches = statistics.median(outcome["mode_switches"] for outcome in found["dynamic"])
    direct = statistics.median(outcome["direct_ratio"] for outcome in found["dynamic"])
    return f"| {point.size} | {point.receives} | {point.sends} | {medians} | {of_better:.2f} | {switches:.0f}, {direct:.3f} |"


def table(binary: pathlib.Path, transport: str, rounds: int) -> str:
    lines = [
        f"{transport}, GB/s:\n",
        "| size | receives | sends | direct | indirect | dynamic | of the better | dynamic: switches, direct part |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in points(transport):
        lines.append(measure(binary, point, rounds))
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"
