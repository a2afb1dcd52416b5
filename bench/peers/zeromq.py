"""ZeroMQ: one publisher, some subscribers, on TCP over loopback."""

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, ROOT, json_of, run


class ZeroMq(Contestant):
    name = "zeromq"
    guarantee = "order of one publisher; nothing is known of what arrived"
    packages = ["libzmq3-dev", "gcc", "libc6-dev"]

    def build(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        run(["cc", "-O2", "-o", BUILD / "zeromq", ROOT / "bench" / "peers" / "zeromq.c", "-lzmq"])

    def takes(self, case: Case) -> bool:
        return case.senders == "one"

    def measure(self, case: Case) -> Figure:
        subscribers = case.members - 1
        if case.kind == LATENCY:
            return json_of(run([BUILD / "zeromq", "latency", case.size, 20_000, 1]))["round_trip_ns"]["p50"]
        count = max(20_000, 1_500_000 // (subscribers * (1 + case.size // 512)))
        return json_of(run([BUILD / "zeromq", "throughput", case.size, count, subscribers]))["messages_per_second"]
