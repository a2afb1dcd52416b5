"""CycloneDDS: `ddsperf` of the distribution, reliable, over loopback (its default in Debian: no shared memory)."""

import os
import re
import shutil
import statistics

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, Failed, background, run

SECONDS = 4
# Unicast over the loopback interface, in datagrams as large as it takes.
SETTINGS = """<CycloneDDS><Domain>
<General><Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces><AllowMulticast>false</AllowMulticast>
<MaxMessageSize>65500B</MaxMessageSize><FragmentSize>63000B</FragmentSize></General>
<Discovery><Peers><Peer address="localhost"/></Peers><ParticipantIndex>auto</ParticipantIndex></Discovery>
</Domain></CycloneDDS>"""


class CycloneDds(Contestant):
    name = "cyclonedds"
    guarantee = "RELIABLE over UDP on loopback: order of one writer, sent again until the reader has it"
    packages = ["cyclonedds-tools"]

    def build(self) -> None:
        if not shutil.which("ddsperf"):
            raise Failed("ddsperf is not installed")

    def takes(self, case: Case) -> bool:
        return case.senders == "one"

    def measure(self, case: Case) -> Figure:
        environment = os.environ | {"CYCLONEDDS_URI": SETTINGS}
        readers = range(case.members - 1)
        if case.kind == LATENCY:
            pongs = [["ddsperf", "-D", SECONDS + 1, "pong"] for _ in readers]
            with background(pongs, BUILD / "cyclonedds.log", env=environment):
                output = run(["ddsperf", "-D", SECONDS, "ping", "size", case.size], env=environment)
            return round_trip(output, len(readers))
        logs = [BUILD / f"cyclonedds-{i}.log" for i in readers]
        BUILD.mkdir(parents=True, exist_ok=True)
        shell = 'exec ddsperf -1 -D "$1" sub >"$0"'
        subs = [["sh", "-c", shell, log, SECONDS] for log in logs]
        with background(subs, BUILD / "cyclonedds.log", env=environment) as running:
            run(["ddsperf", "-D", SECONDS, "pub", "size", case.size], env=environment)
            for process in running:
                process.wait(10)
        return min(rate(log.read_text(encoding="utf-8")) for log in logs)


def rate(output: str) -> Figure:
    """Samples per second of a subscriber: the median of its seconds without the first, in which it finds the publisher."""
    seconds = [float(found) for found in re.findall(r" delta \d+ lost \d+ rate ([0-9.]+) kS/s", output)]
    if len(seconds) < 2:
        raise Failed(f"ddsperf has counted too few samples:\n{output[-2000:]}")
    return statistics.median(seconds[1:]) * 1e3


def round_trip(output: str, readers: int) -> Figure:
    """Nanoseconds until the answer of the slowest reader is there: `ddsperf` prints the half, for each reader and second."""
    found = re.findall(r"(\S+:\d+) size \d+ mean \S+ min \S+ 50% ([0-9.]+)us", output)
    by_reader: dict[str, list[float]] = {}
    for reader, half in found[readers:]:
        by_reader.setdefault(reader, []).append(float(half))
    if len(by_reader) != readers:
        raise Failed(f"ddsperf has {len(by_reader)} of {readers} readers:\n{output[-2000:]}")
    return 2e3 * max(statistics.median(halves) for halves in by_reader.values())
