"""Aeron: IPC (publish and subscribe on shared memory) and Cluster (a replicated log on loopback)."""

import contextlib
import shutil
import tempfile
import time

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, background, json_of, run, wait_until

from . import jvm

SECONDS = 2.5
SETTLE_SECONDS = 4  # for an election
# Payload and headers of a large message in one datagram.
MTU = ("-Daeron.mtu.length=8192", "-Daeron.ipc.mtu.length=8192")


class AeronIpc(Contestant):
    name = "aeron-ipc"
    guarantee = "order of one publisher"
    packages = jvm.PACKAGES

    def build(self) -> None:
        jvm.build()

    def takes(self, case: Case) -> bool:
        return case.senders == "one"

    def measure(self, case: Case) -> Figure:
        if case.kind == LATENCY:
            return json_of(run(jvm.java("AeronIpc", "latency", case.size, 300_000, 1)))["round_trip_ns"]["p50"]
        count = max(20_000, 12_000_000 // (1 + case.size // 256) // (case.members - 1))
        command = jvm.java("AeronIpc", "throughput", case.size, count, case.members - 1)
        return json_of(run(command))["messages_per_second"]


class AeronCluster(Contestant):
    packages = jvm.PACKAGES

    def __init__(self, members: int = 3, sync: bool = False):
        self.members = members
        self.sync = sync
        self.name = "aeron-cluster fsync" if sync else "aeron-cluster"
        self.guarantee = "Raft, a majority has it on disk" if sync else "Raft, a majority has it, not on disk"

    def build(self) -> None:
        jvm.build()

    def takes(self, case: Case) -> bool:
        return case.members == self.members and case.senders == "one"

    @contextlib.contextmanager
    def session(self):
        log = BUILD / "aeron-cluster.log"
        with tempfile.TemporaryDirectory(dir=BUILD if self.sync else "/dev/shm") as folder:
            level = 2 if self.sync else 0
            nodes = [
                jvm.java("AeronClusterNode", i, self.members, folder, level, options=MTU) for i in range(self.members)
            ]
            try:
                with background(nodes, log):
                    wait_until(lambda: log.read_text().count("ready") == self.members, 30, "aeron-cluster: all members")
                    time.sleep(SETTLE_SECONDS)
                    yield
            finally:
                for i in [*range(self.members), "client"]:
                    shutil.rmtree(f"/dev/shm/aeron-cluster-peer-{i}", ignore_errors=True)

    def measure(self, case: Case) -> Figure:
        window = 1 if case.kind == LATENCY else 1024 if case.size <= 256 else 512 if case.size <= 1024 else 64
        command = jvm.java("AeronClusterClient", self.members, case.size, SECONDS, window, options=MTU)
        result = json_of(run(command))
        return result["latency_ns"]["p50"] if case.kind == LATENCY else result["messages_per_second"]
