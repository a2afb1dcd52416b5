"""Byte streams between two processes on one host: Squall, UCX, and plain sockets."""

import os
import random
import subprocess
import time

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, Failed, json_of, run
from harness.squall import Squall


def messages(size: int, seconds: float = 0.5) -> int:
    """Messages for a run of about so long, at some gigabytes in a second."""
    return max(20, min(50_000, int(seconds * 8e9 / size)))


class SquallStream(Squall):
    """`squall bench stream`; both ends poll, or sleep soon."""

    def __init__(self, transport: str, binary: str | None = None, blocking: bool = False):
        super().__init__(transport, binary)
        self.blocking = blocking
        self.name = f"squall {transport}" + (" blocking" if blocking else "")
        self.guarantee = "bytes in order; a send completes when it is in the peer's memory"

    def takes(self, case: Case) -> bool:
        return case.kind == LATENCY or not self.blocking

    def measure(self, case: Case) -> Figure:
        command = [self.binary, "bench", "stream", "--transport", self.transport, "--size", case.size, "--json"]
        if case.kind == LATENCY:
            idle = "auto" if self.blocking else "spin"
            command += ["--round-trip", "--messages", 20_000 if self.transport == "shm" else 5_000, "--idle", idle]
            return json_of(run(command))["latency_ns"]["p50"]
        # A plain socket has its buffers' worth under way; on shared memory, where nothing is, two messages are enough.
        sends = max(2, (1 << 19) // case.size) if self.transport == "tcp" else 2
        command += ["--messages", messages(case.size), "--outstanding-send", sends, "--outstanding-receive", 2 * sends]
        return json_of(run(command))["bytes_per_second"] / case.size


class Lines(Contestant):
    """`lines.c`: the limit of the machine."""

    name = "bare cache lines"
    guarantee = "the machine's limit: a flag and the bytes, no protocol"
    packages = ["gcc", "libc6-dev"]

    def build(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["cc", "-O2", "-o", BUILD / "lines", ROOT / "bench" / "limits" / "lines.c"])

    def takes(self, case: Case) -> bool:
        return case.kind == LATENCY

    def measure(self, case: Case) -> Figure:
        return json_of(run([BUILD / "lines", case.size, 100_000]))["round_trip_ns"]


class Sockets(Contestant):
    """`sockets.c`."""

    guarantee = "bytes in order; a write is done when the kernel has a copy"
    packages = ["gcc", "libc6-dev"]

    def __init__(self, kind: str, blocking: bool = False):
        self.kind, self.blocking = kind, blocking
        self.name = ("loopback tcp" if kind == "tcp" else "unix socket") + (" blocking" if blocking else "")

    def build(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["cc", "-O2", "-o", BUILD / "sockets", ROOT / "bench" / "peers" / "sockets.c"])

    def takes(self, case: Case) -> bool:
        return case.kind == LATENCY or not self.blocking

    def measure(self, case: Case) -> Figure:
        if case.kind == LATENCY:
            how = "blocking" if self.blocking else "latency"
            return json_of(run([BUILD / "sockets", self.kind, how, case.size, 5_000]))["round_trip_ns"]
        return json_of(run([BUILD / "sockets", self.kind, "throughput", case.size, messages(case.size)]))["messages_per_second"]


class Ucx(Contestant):
    """`ucx_perftest` over POSIX shared memory, tag matching."""

    name = "ucx posix"
    guarantee = "messages in order"
    packages = ["ucx-utils"]

    def build(self) -> None:
        run(["sh", "-c", "command -v ucx_perftest"])

    def takes(self, case: Case) -> bool:
        return True

    def measure(self, case: Case) -> Figure:
        latency = case.kind == LATENCY
        test = "tag_lat" if latency else "tag_bw"
        count = 50_000 if latency else messages(case.size)
        port = random.randint(15000, 25000)
        environment = os.environ | {"UCX_TLS": "posix,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
        with subprocess.Popen(["taskset", "-c", "1", "ucx_perftest", "-p", str(port)], **quiet) as server:
            try:
                time.sleep(0.5)
                client = ["taskset", "-c", 0, "ucx_perftest", "-p", port, "127.0.0.1", "-t", test]
                client += ["-s", case.size, "-n", count, "-w", max(5, count // 20), "-f"]
                words = run(client, env=environment).split()
            finally:
                server.kill()
        numbers = [float(word) for word in words if word.replace(".", "", 1).isdigit()]
        if len(numbers) < 8:
            raise Failed(f"ucx_perftest printed {words[-12:]}")
        # The last line: iterations, time at the median, average, overall, bandwidth twice, rate twice.
        return 2000 * numbers[-7] if latency else numbers[-1]


# Peers of the stream's benchmark.
STREAMS = [Lines(), Ucx(), Sockets("tcp"), Sockets("unix"), Sockets("unix", blocking=True), Sockets("tcp", blocking=True)]
