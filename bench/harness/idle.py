"""What polling threads do without work (`--idle`), with other programs beside them: the automatic choice beside the fixed ones."""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys

from .process import Failed, json_of, run
from .rounds import say

POLICIES = ["auto", "park", "yield", "spin"]
TRANSPORTS = {"shm": ["--transport", "shm"], "tcp between hosts": ["--transport", "tcp", "--lab"]}
# A busy loop for each core, or a limit on the processors' time.
NEIGHBOURS = {"none": None, "nice 0": 0, "nice 5": 5, "nice 19": 19, "limit of one core": "limit"}
GROUP = pathlib.Path("/sys/fs/cgroup/cpu/squall-bench")


@contextlib.contextmanager
def neighbour(kind):
    """Starts the neighbours; yields what a command is to begin with."""
    if kind == "limit":
        with limit(1.0) as words:
            yield words
        return
    busy = [] if kind is None else [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.nice(kind)) for _ in range(os.cpu_count())
    ]
    try:
        yield []
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def limit(cores: float):
    try:
        GROUP.mkdir()
        (GROUP / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))
    except OSError as error:
        raise Failed(f"no cgroup (version 1) to limit processors: {error}") from error
    try:
        yield ["sh", "-c", f'echo $$ >{GROUP}/cgroup.procs && exec "$@"', "limited"]
    finally:
        GROUP.rmdir()


def measure(squall: str, begin: list, transport: str, idle: str) -> tuple[float, float, float]:
    """Messages per second; microseconds one at a time, at the median and at most."""
    command = [*begin, squall, "bench", "multicast", *TRANSPORTS[transport], "--members", 3, "--senders", "one", "--size", 64]
    command += ["--encryption", "off", "--idle", idle, "--json", "--messages"]
    rate = json_of(run([*command, 50_000 if idle == "spin" else 400_000]))["messages_per_second"]
    times = json_of(run([*command, 3_000, "--latency"]))["latency_ns"]
    return rate, times["p50"] / 1e3, times["max"] / 1e3


def table(squall: str, rounds: int) -> str:
    found: dict = {}
    for turn in range(rounds):
        for transport in TRANSPORTS:
            for name, kind in NEIGHBOURS.items():
                for idle in POLICIES:
                    try:
                        with neighbour(kind) as begin:
                            figures = measure(squall, begin, transport, idle)
                    except Failed as error:
                        say(f"round {turn + 1}/{rounds}  {transport:18} {name:18} {idle:6} FAILED: {str(error)[-200:]}")
                        continue
                    found.setdefault((transport, name, idle), []).append(figures)
                    say(f"round {turn + 1}/{rounds}  {transport:18} {name:18} {idle:6} {figures[0]:,.0f}/s {figures[1]:.0f} µs, at most {figures[2]:,.0f}")
    lines = ["| carried by | beside | " + " | ".join(POLICIES) + " | auto, times the best rate | auto, times the best median |", "|---" * 8 + "|"]
    for transport in TRANSPORTS:
        for name in NEIGHBOURS:
            medians = {idle: [statistics.median(column) for column in zip(*found[transport, name, idle])]
                       for idle in POLICIES if (transport, name, idle) in found}
            if "auto" not in medians:
                continue
            cells = [f"{rate / 1e3:,.0f}; {p50:,.0f}; {most / 1e3:,.0f}" for rate, p50, most in medians.values()]
            best = max(m[0] for m in medians.values()), min(m[1] for m in medians.values())
            lines.append(f"| {transport} | {name} | " + " | ".join(cells) +
                         f" | {medians['auto'][0] / best[0]:.2f} | {medians['auto'][1] / best[1]:.2f} |")
    return "\n".join(lines)
