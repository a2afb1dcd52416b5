"""etcd: three servers on loopback, values on disk, and clients that put."""

import contextlib
import shutil
import socket
import tempfile
import time

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, Failed, background, json_of, run, wait_until

CLIENT_PORT = 23790
PEER_PORT = 23800
SECONDS = 2
SETTLE_SECONDS = 2  # for an election
CLIENTS = 256


class Etcd(Contestant):
    name = "etcd"
    guarantee = "Raft, a majority has it on disk"
    packages = ["etcd-server", "golang-go"]
    program = BUILD / "etcdpeer"

    def __init__(self, members: int = 3):
        self.members = members

    def build(self) -> None:
        if not shutil.which("etcd"):
            raise Failed("etcd is not installed")
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["go", "build", "-o", self.program, "."], cwd=ROOT / "bench" / "peers" / "etcd", timeout=1800)

    def takes(self, case: Case) -> bool:
        return case.members == self.members and case.senders == "one"

    @contextlib.contextmanager
    def session(self):
        with tempfile.TemporaryDirectory(dir=BUILD) as data:
            servers = [server(i, self.members, data) for i in range(self.members)]
            with background(servers, BUILD / "etcd.log"):
                wait_until(lambda: all(answers(CLIENT_PORT + i) for i in range(self.members)), 20, "etcd: all servers")
                time.sleep(SETTLE_SECONDS)
                yield

    def measure(self, case: Case) -> Figure:
        endpoints = ",".join(f"127.0.0.1:{CLIENT_PORT + i}" for i in range(self.members))
        clients = 1 if case.kind == LATENCY else CLIENTS
        result = json_of(run([self.program, endpoints, clients, case.size, SECONDS]))
        return result["latency_ns"]["p50"] if case.kind == LATENCY else result["messages_per_second"]


def server(i: int, members: int, data: str) -> list:
    def url(port: int) -> str:
        return f"http://127.0.0.1:{port}"

    cluster = ",".join(f"n{j}={url(PEER_PORT + j)}" for j in range(members))
    return [
        "etcd", "--name", f"n{i}", "--data-dir", f"{data}/n{i}", "--log-level", "error",
        "--listen-client-urls", url(CLIENT_PORT + i), "--advertise-client-urls", url(CLIENT_PORT + i),
        "--listen-peer-urls", url(PEER_PORT + i), "--initial-advertise-peer-urls", url(PEER_PORT + i),
        "--initial-cluster", cluster, "--initial-cluster-state", "new",
    ]


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
