"""Rounds: every contestant in turn, again and again, so that a busy neighbour disturbs all of them alike."""

import dataclasses
import statistics
import sys

from .case import BULK, LATENCY, Case, Figure, figure_in_words
from .contestant import Contestant
from .process import Failed


@dataclasses.dataclass
class Row:
    """All runs of one contestant in one case."""

    case: Case
    contestant: str
    runs: list[Figure]

    @property
    def median(self) -> Figure | None:
        return statistics.median(self.runs) if self.runs else None


def play(contestants: list[Contestant], cases: list[Case], runs: int) -> list[Row]:
    """Runs everything `runs` times; a contestant that fails is reported and has fewer runs in its row."""
    rows = {(c, p.name): Row(c, p.name, []) for c in cases for p in contestants if p.takes(c)}
    for i in range(runs):
        for contestant in contestants:
            try:
                with contestant.session():
                    for case in filter(contestant.takes, cases):
                        figure = contestant.measure(case)
                        rows[case, contestant.name].runs.append(figure)
                        say(f"round {i + 1}/{runs}  {contestant.name:16} {case.title:40} {figure_in_words(case.kind, figure)}")
            except Failed as error:
                say(f"round {i + 1}/{runs}  {contestant.name} FAILED: {error}")
    return list(rows.values())


def ratio(rows: list[Row], case: Case, name: str, base: str) -> float | None:
    """How many times better `name` is than `base`: more messages in a second, or less time for one."""
    medians = {row.contestant: row.median for row in rows if row.case == case}
    one, other = medians.get(name), medians.get(base)
    if not one or not other:
        return None
    return other / one if case.kind in (LATENCY, BULK) else one / other


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
