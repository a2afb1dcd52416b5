"""Corosync: three daemons, each in a network namespace of its own on one bridge, and a CPG program beside each."""

import contextlib
import shutil
import subprocess
import time

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, RUN_SECONDS_MAX, Failed, background, json_of, run, wait_until

BRIDGE = "sqbench0"
SUBNET = "10.77.0"
SECONDS = 1.5


class Corosync(Contestant):
    name = "corosync"
    guarantee = "virtual synchrony, agreed order (Totem)"
    packages = ["corosync", "libcpg-dev", "iproute2", "gcc", "libc6-dev"]
    program = BUILD / "corosync"
    folder = BUILD / "corosync.d"

    def __init__(self, members: int = 3):
        self.members = members

    def build(self) -> None:
        if not shutil.which("corosync"):
            raise Failed("corosync is not installed")
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["cc", "-O2", "-o", self.program, ROOT / "bench" / "peers" / "corosync.c", "-lcpg"])

    def takes(self, case: Case) -> bool:
        return case.members == self.members

    @contextlib.contextmanager
    def session(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "corosync.conf").write_text(configuration(self.members), encoding="utf-8")
        with network(self.members):
            daemons = [inside(i, self.daemon()) for i in range(self.members)]
            with background(daemons, self.folder / "daemons.log"):
                wait_until(self.is_quorate, 30, "corosync: a quorum of all nodes")
                yield

    def daemon(self) -> list:
        """The daemon with state folders of its own, so that nodes of one host do not share them."""
        private = "".join(f"mount -t tmpfs none {folder}; " for folder in ("/run", "/var/lib/corosync", "/var/log/corosync"))
        start = f"{private}exec corosync -f -c {self.folder}/corosync.conf"
        return ["unshare", "-m", "--propagation", "private", "bash", "-c", start]

    def is_quorate(self) -> bool:
        # The daemons hide /run from us; what they write tells.
        log = (self.folder / "daemons.log").read_text(errors="replace")
        return log.count(f"Members[{self.members}]") >= self.members

    def measure(self, case: Case) -> Figure:
        group = f"bench{time.monotonic_ns()}"
        first = "latency" if case.kind == LATENCY else "send"
        other = "send" if case.senders == "all" and first == "send" else "receive"
        arguments = [case.size, SECONDS, self.members, group]
        others = [inside(i, [self.program, other, *arguments]) for i in range(1, self.members)]
        with background(others, self.folder / "members.log") as running:
            result = json_of(run(inside(0, [self.program, first, *arguments])))
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(RUN_SECONDS_MAX if first == "send" else 1)
        return result["latency_ns"]["p50"] if case.kind == LATENCY else result["messages_per_second"]


def inside(i: int, command: list) -> list:
    return ["ip", "netns", "exec", f"{BRIDGE}n{i}", *command]


@contextlib.contextmanager
def network(members: int):
    """Namespaces joined by a bridge."""
    take_down(members)
    try:
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "link", "set", BRIDGE, "mtu", "9000", "up"])
        for i in range(members):
            space, outer = f"{BRIDGE}n{i}", f"{BRIDGE}v{i}"
            run(["ip", "netns", "add", space])
            run(["ip", "link", "add", outer, "mtu", "9000", "type", "veth", "peer", "name", "eth0", "mtu", "9000", "netns", space])
            run(["ip", "link", "set", outer, "master", BRIDGE, "up"])
            run(["ip", "-n", space, "addr", "add", f"{SUBNET}.{i + 1}/24", "dev", "eth0"])
            run(["ip", "-n", space, "link", "set", "eth0", "up"])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
        yield
    finally:
        take_down(members)


def take_down(members: int) -> None:
    for command in [["netns", "del", f"{BRIDGE}n{i}"] for i in range(members)] + [["link", "del", BRIDGE]]:
        with contextlib.suppress(Failed):
            run(["ip", *command])


def configuration(members: int) -> str:
    nodes = "".join(
        f"  node {{\n    ring0_addr: {SUBNET}.{i + 1}\n    name: n{i + 1}\n    nodeid: {i + 1}\n  }}\n"
        for i in range(members)
    )
    return (
        "totem {\n  version: 2\n  cluster_name: bench\n  transport: knet\n  crypto_cipher: none\n  crypto_hash: none\n"
        "  netmtu: 9000\n  token: 3000\n}\n"
        f"nodelist {{\n{nodes}}}\n"
        "system {\n  sched_rr: no\n  move_to_root_cgroup: no\n}\n"
        "quorum {\n  provider: corosync_votequorum\n}\n"
        "logging {\n  to_logfile: no\n  to_syslog: no\n  to_stderr: yes\n}\n"
    )
