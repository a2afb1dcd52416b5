"""iceoryx2: one publisher, some subscribers, on shared memory."""

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, json_of, run


class Iceoryx2(Contestant):
    name = "iceoryx2"
    guarantee = "order of one publisher"
    packages = ["gcc", "libc6-dev"]  # and a crate, which cargo fetches
    program = BUILD / "iceoryx2" / "release" / "iceoryx2-peer"

    def build(self) -> None:
        manifest = ROOT / "bench" / "peers" / "iceoryx2" / "Cargo.toml"
        command = ["cargo", "build", "--release", "--locked", "--manifest-path", manifest]
        run([*command, "--target-dir", BUILD / "iceoryx2"], timeout=1800)

    def takes(self, case: Case) -> bool:
        return case.senders == "one"

    def measure(self, case: Case) -> Figure:
        if case.kind == LATENCY:
            return json_of(run([self.program, "latency", case.size, 300_000, 1]))["round_trip_ns"]["p50"]
        return json_of(run([self.program, "throughput", case.size, 3_000_000, case.members - 1]))["messages_per_second"]


class Iceoryx2Singly(Iceoryx2):
    """The same, with round trips to one subscriber only: the program has one that answers."""

    def takes(self, case: Case) -> bool:
        return super().takes(case) and (case.kind != LATENCY or case.members == 2)
