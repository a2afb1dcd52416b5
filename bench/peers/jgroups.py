"""JGroups: three members on loopback TCP, the last of which sends; the first is the sequencer."""

import time

from harness.case import LATENCY, Case, Figure
from harness.contestant import Contestant
from harness.process import BUILD, background, json_of, run, wait_until

from . import jvm

SECONDS = 2.5
JOIN_SECONDS = 1.2  # one after the other, so that they do not form groups of one


class JGroups(Contestant):
    name = "jgroups"
    guarantee = "total order by a sequencer, not uniform"
    packages = jvm.PACKAGES

    def __init__(self, members: int = 3):
        self.members = members

    def build(self) -> None:
        jvm.build()

    def takes(self, case: Case) -> bool:
        return case.members == self.members and case.senders == "one"

    def measure(self, case: Case) -> Figure:
        window = 1 if case.kind == LATENCY else 1024 if case.size <= 1024 else 64
        figures = (case.size, SECONDS, window)
        return self.with_receivers(self.members - 1, figures, case)

    def with_receivers(self, count: int, figures: tuple, case: Case) -> Figure:
        """Starts the receivers, the first first, then runs the sender beside them."""
        if count > 0:
            i = self.members - 1 - count
            log = BUILD / f"jgroups{i}.log"
            with background([jvm.java("JGroupsNode", i, self.members, "receive", *figures)], log):
                wait_until(lambda: "ready" in log.read_text(), 20, f"jgroups: member {i}")
                time.sleep(JOIN_SECONDS if i == 0 else 0)
                return self.with_receivers(count - 1, figures, case)
        result = json_of(run(jvm.java("JGroupsNode", self.members - 1, self.members, "send", *figures)))
        return result["latency_ns"]["p50"] if case.kind == LATENCY else result["messages_per_second"]
