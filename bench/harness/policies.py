"""The three policies of a stream in turn, in random order: figures 9, 11 and 12 and table III of EXS, measured."""

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
    """Exponential sizes by outstanding operations (figure 9, table III), and fixed ones at 4 receives and 2 sends (figure 12)."""
    pairs = [(n, n) for n in (1, 2, 4, 8, 16, 32)] + [(2 * n, n) for n in (1, 2, 4, 8, 16)]
    exponential = [Point(transport, "exp:1MiB", receives, sends, 3000) for receives, sends in pairs]
    short, long = (1 << 27, 1 << 30) if transport == "tcp" else (1 << 30, 1 << 32)
    sizes = [512, 1024, 2048, 4096, 32 << 10, 256 << 10, 2 << 20]
    volumes = [(size, short if size < (32 << 10) else long) for size in sizes]
    return exponential + [Point(transport, str(size), 4, 2, volume // size) for size, volume in volumes]


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


def many_receives(binary: pathlib.Path, transport: str, rounds: int) -> str:
    """Dynamic with 32 receives outstanding, by size and number of sends (figure 11)."""
    sends = [1, 2, 4, 8, 16, 32]
    lines = [
        f"{transport}, dynamic with 32 receives, GB/s by the number of sends, and the part that went directly:\n",
        "| size | " + " | ".join(str(count) for count in sends) + " |",
        "|---" * (len(sends) + 1) + "|",
    ]
    volume = 1 << (27 if transport == "tcp" else 29)
    for size in (8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20):
        cells = []
        for count in sends:
            point = Point(transport, str(size), 32, count, volume // size)
            runs = [once(binary, point, "dynamic") for _ in range(rounds)]
            speed = statistics.median(outcome["bytes_per_second"] / 1e9 for outcome in runs)
            direct = statistics.median(outcome["direct_ratio"] for outcome in runs)
            cells.append(f"{speed:.2f}, {direct:.3f}")
        lines.append(f"| {size >> 10} KiB | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


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
