"""Messages to shards in one order, and the same through one subgroup that all filter, in turn: `squall bench genuine`."""

import pathlib
import statistics
from dataclasses import dataclass

from .case import LATENCY, THROUGHPUT, figure_in_words
from .process import json_of, run

SHARDS = 2
REPLICAS = 2
SIZE = 64


@dataclass(frozen=True)
class Point:
    """One line of a table."""

    transport: str
    destinations: int
    kind: str

    @property
    def title(self) -> str:
        what = "one at a time" if self.kind == LATENCY else "all sending"
        return f"{self.transport}, to {self.destinations} of {SHARDS} shards, {what}"


def points() -> list[Point]:
    return [Point(transport, destinations, kind) for transport in ("shm", "tcp") for kind in (THROUGHPUT, LATENCY) for destinations in (1, 2)]


def once(binary: pathlib.Path, point: Point) -> tuple[float, float]:
    """Both figures of one run, which measures one after the other: messages per second, or nanoseconds at the median."""
    latency = point.kind == LATENCY
    command = [binary, "bench", "genuine", "--json", "--transport", point.transport, "--shards", SHARDS, "--replicas", REPLICAS]
    command += ["--destinations", point.destinations, "--size", SIZE, "--messages", 2_000 if latency else 20_000]
    outcome = json_of(run(command + (["--latency"] if latency else [])))
    figures = outcome, outcome["one_subgroup"]
    return tuple(figure["latency_ns"]["p50"] if latency else figure["messages_per_second"] for figure in figures)


def line(point: Point, runs: list[tuple[float, float]]) -> str:
    """Medians, and the median of the ratios within one run: above 1 genuine multicast is better."""
    cells = [point.title]
    for which in (0, 1):
        figures = sorted(run[which] for run in runs)
        least, median, most = (figure_in_words(point.kind, figure) for figure in (figures[0], statistics.median(figures), figures[-1]))
        cells.append(f"{median} ({least} … {most})")
    ratios = sorted(one / all_of_them if point.kind == THROUGHPUT else all_of_them / one for one, all_of_them in runs)
    cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} … {ratios[-1]:.2f})")
    return "| " + " | ".join(cells) + " |"


def table(binary: pathlib.Path, rounds: int) -> str:
    found: dict[Point, list[tuple[float, float]]] = {point: [] for point in points()}
    for _ in range(rounds):
        for point, runs in found.items():
            runs.append(once(binary, point))
    head = "| case | genuine | one subgroup that all filter | genuine, times it |\n|---|---|---|---|"
    return "\n".join([head, *(line(point, runs) for point, runs in found.items())])
