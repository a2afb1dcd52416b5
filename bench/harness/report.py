"""Results as a table for people and as JSON for scripts, with machine, date, commit and command."""

import datetime
import json
import os
import pathlib
import platform
import shlex
import sys

from .case import Case, figure_in_words
from .contestant import Contestant
from .process import ROOT, Failed, run
from .rounds import Row, ratio


def machine() -> dict:
    """What the figures depend on."""
    cpu = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)),
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit that was measured; marked if the tree differs from it."""
    try:
        head = run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT).strip()
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT).strip()
    except Failed:
        return "unknown"
    return head + ("+changes" if changed else "")


def today() -> str:
    """The time to the minute."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def command() -> str:
    """What was typed, but for where things are on this machine."""
    words = iter(sys.argv[1:])
    told = []
    for word in words:
        if word in ("--squall", "--folder"):
            next(words, None)
        elif not word.startswith(("--squall=", "--folder=")):
            told.append(word)
    return shlex.join(["bench/run", *told])


def machine_in_words(about: dict) -> str:
    """The machine, for people."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in about.items())


def table(rows: list[Row], contestants: list[Contestant], base: str) -> str:
    """A line for each case and contestant: median, spread, ratio of `base` to it."""
    lines = [f"| case | | median | least … most | runs | {base} relative to it (above 1 is better) |", "|---|---|---|---|---|---|"]
    names = [contestant.name for contestant in contestants]
    for case in dict.fromkeys(row.case for row in rows):
        for row in sorted((row for row in rows if row.case == case), key=lambda row: names.index(row.contestant)):
            lines.append(line(row, rows, case, base))
    return "\n".join(lines) + "\n"


def line(row: Row, rows: list[Row], case: Case, base: str) -> str:
    def words(figure: float | None) -> str:
        return figure_in_words(case.kind, figure)

    spread = f"{words(min(row.runs))} … {words(max(row.runs))}" if row.runs else "failed"
    times = ratio(rows, case, base, row.contestant)
    better = "" if row.contestant == base else "–" if times is None else f"{times:.2f}"
    return f"| {case.title} | {row.contestant} | {words(row.median)} | {spread} | {len(row.runs)} | {better} |"


def write(
    folder: pathlib.Path, name: str, title: str, rows: list[Row], contestants: list[Contestant], base: str, about: dict
) -> None:
    """Writes NAME.md and NAME.json into `folder` and prints the table."""
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "title": title,
        "date": today(),
        "commit": about["commit"],
        "command": command(),
        "machine": about["machine"],
        "rows": [
            {**vars(row.case), "contestant": row.contestant, "median": row.median, "runs": row.runs} for row in rows
        ],
    }
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = table(rows, contestants, base)
    (folder / f"{name}.md").write_text(page(result, text, contestants), encoding="utf-8")
    print(text)


def page(result: dict, text: str, contestants: list[Contestant]) -> str:
    where = machine_in_words(result["machine"])
    promises = "\n".join(f"- {contestant.name}: {contestant.guarantee}" for contestant in contestants)
    return (
        f"# {result['title']}\n\n{result['date']}, commit {result['commit']}, `{result['command']}`\n\n"
        f"Machine: {where}.\n\n{text}\nMedians of alternating runs. Messages per second are what each receiver "
        f"delivers; times are medians within a run.\n\n{promises}\n"
    )
