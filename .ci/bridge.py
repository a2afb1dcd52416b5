"""Checks that programs of CycloneDDS and `squall dds pub|sub` exchange samples through the bridge, both ways, on loopback: text and a type
with a key as it is; that a peer that goes is reported, that a second bridge takes over while samples come, and that nothing goes round.

use: bridge.py SQUALL SQUALL_DDS_BRIDGE FOLDER     (needs idlc, cc and libddsc: packages cyclonedds-tools, cyclonedds-dev, gcc)"""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent / "bridge"
SOON = 60  # seconds; longer than anything here takes on a busy machine
DOMAIN = os.getpid() % 230  # so that runs at the same time do not meet
COUNT = 5
FLOW = 150  # samples while the bridge changes
CYCLONE = f"""<CycloneDDS><Domain Id="{DOMAIN}">
<General><Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces><AllowMulticast>false</AllowMulticast></General>
<Discovery><Peers><Peer address="127.0.0.1"/></Peers><ParticipantIndex>auto</ParticipantIndex></Discovery>
</Domain></CycloneDDS>"""
TOPICS = f"""
rtps_domain = {DOMAIN}
networks = ["127.0.0.1"]
[topics.line]
rtps_topic = "Line"
type = "HelloWorldData::Line"
form = "text"
[topics.msg]
rtps_topic = "Msg"
type = "HelloWorldData::Msg"
keyed = true
"""


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """In a new process: it is killed when this program ends, however that happens."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(number: int, _: object) -> None:
    """Lets `finally` end the processes."""
    raise TimeoutError(f"signal {signal.Signals(number).name}: the check was ended, or took longer than {4 * SOON} s")


class Check:
    """The processes of one run, which end with it."""

    def __init__(self, squall: str, bridge: str, folder: pathlib.Path):
        self.squall, self.bridge, self.folder = squall, bridge, folder
        self.processes: list[subprocess.Popen] = []
        self.events: dict[int, list[dict]] = {}  # that the bridges have reported, by their processes

    def build(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["idlc", HERE / "HelloWorldData.idl"], cwd=self.folder, check=True)
        command = ["cc", "-O1", "-o", "hello", HERE / "hello.c", "HelloWorldData.c", "-I.", "-lddsc"]
        subprocess.run(command, cwd=self.folder, check=True)
        name = f"squall-bridge-{os.getpid()}"
        node = f"unix:@{name}"
        (self.folder / "squall.toml").write_text(
            f'cluster = "{name}"\nsecret = "at least sixteen bytes"\ntransport = "shm"\nlisten = "{node}"\n'
            f'contacts = ["{node}"]\nmembers = 1\n[subgroups.dds-topics]\n', encoding="utf-8")
        (self.folder / "bridge.toml").write_text(TOPICS, encoding="utf-8")

    def start(self, *command: object) -> subprocess.Popen:
        environment = os.environ | {"CYCLONEDDS_URI": CYCLONE}
        words = [str(word) for word in command]
        process = subprocess.Popen(words, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        self.processes.append(process)
        return process

    def dds(self, command: str, *more: object) -> subprocess.Popen:
        return self.start(self.squall, "dds", command, "-c", "squall.toml", *more, "--timeout", f"{SOON}s")

    def hello(self, *arguments: object) -> subprocess.Popen:
        return self.start("./hello", *arguments)

    def start_bridge(self) -> subprocess.Popen:
        listen = f"unix:@squall-bridge-{os.getpid()}-{len(self.processes)}"
        command = ["-c", "squall.toml", "-t", "bridge.toml", "--listen", listen, "--timeout", f"{SOON}s", "--json"]
        return self.start(self.bridge, *command)

    def await_events(self, bridge: subprocess.Popen, wanted: set[tuple[str, str, int]]) -> None:
        """Waits until a bridge has reported these numbers of peers: of a topic, `readers` or `writers`, how many."""
        events = self.events.setdefault(bridge.pid, [])
        missing = wanted - {peers(event) for event in events}
        while missing:
            line = bridge.stdout.readline()
            assert line, f"the bridge ended, and has not reported these peers: {missing}"
            events.append(json.loads(line))
            missing.discard(peers(events[-1]))

    def interrupt(self, bridge: subprocess.Popen) -> dict[str, list[int]]:
        """Ends a bridge; returns how many samples of each topic it forwarded into the Squall domain, into the RTPS domain, and dropped."""
        bridge.send_signal(signal.SIGINT)
        keys = ("into_squall", "into_rtps", "dropped")
        events = [json.loads(line) for line in output(bridge)]
        return {event["topic"]: [event[key] for key in keys] for event in events if event["event"] == "counts"}

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def peers(event: dict) -> tuple[str, str, int] | None:
    return (event["topic"], event["of"], event["now"]) if event["event"] == "peers" else None


def await_line(process: subprocess.Popen, wanted: str) -> None:
    for line in process.stdout:
        if wanted in line:
            return
    raise AssertionError(f"{process.args[0]} ended without {wanted!r}")


def output(process: subprocess.Popen) -> list[str]:
    text, _ = process.communicate(timeout=SOON)
    assert process.returncode == 0, f"{process.args}: status {process.returncode}\n{text}"
    return text.splitlines()


def into_squall(check: Check, node: subprocess.Popen, others: int, topic: str, kind: str, rtps: str) -> None:
    """Samples of CycloneDDS come to `squall dds sub`, beside `others` participants."""
    reading = check.dds("sub", topic, "--count", COUNT)
    await_line(node, f'"participants":{others + 1}')
    # Its reader is announced after the view, which nothing reports.
    time.sleep(1)
    output(check.hello("write", kind, rtps, COUNT))
    came = output(reading)
    expected = [f"hello {i}" if kind == "line" else message(i % 3, f"hello {i}") for i in range(COUNT)]
    assert came == expected, f"{topic}: {came} came into the Squall domain, and not {expected}"
    await_line(node, f'"participants":{others}')
    print(f"{topic}: {COUNT} samples of CycloneDDS came into the Squall domain")


def both_ways(check: Check, node: subprocess.Popen, bridge: subprocess.Popen) -> None:
    for topic, kind, rtps in (("line", "line", "Line"), ("msg", "msg", "Msg")):
        into_squall(check, node, 2, topic, kind, rtps)
        reader = check.hello("read", kind, rtps, COUNT)
        await_line(reader, "matched")
        check.await_events(bridge, {(topic, "readers", 1)})
        # Both know the other one, but a sample that is written at once has been seen not to come.
        time.sleep(1)
        samples = [f"from squall {i}" for i in range(COUNT)]
        hexadecimal = [] if kind == "line" else ["--hex"]
        sent = samples if kind == "line" else [message(i, samples[i]) for i in range(COUNT)]
        output(check.dds("pub", topic, *sent, *hexadecimal))
        # So that none of these lines is taken for a later one.
        await_line(node, '"participants":3')
        await_line(node, '"participants":2')
        out = output(reader)
        expected = samples if kind == "line" else [f"{i} {samples[i]}" for i in range(COUNT)]
        assert out == expected, f"{topic}: {out} came to CycloneDDS, and not {expected}"
        print(f"{topic}: {COUNT} samples of the Squall domain came to CycloneDDS")


def message(user: int, text: str) -> str:
    """A `HelloWorldData::Msg` in CDR, in hexadecimal."""
    data = text.encode() + b"\0"
    cdr = bytes([0, 1, 0, 0]) + user.to_bytes(4, "little") + len(data).to_bytes(4, "little") + data
    return cdr.hex()


def take_over(check: Check, node: subprocess.Popen, first: subprocess.Popen, second: subprocess.Popen) -> None:
    """The first bridge ends while CycloneDDS writes. Samples may be lost then, and none goes back."""
    flow = check.hello("write", "line", "Line", FLOW, 20)
    await_line(flow, "matched")
    time.sleep(FLOW * 0.02 / 3)
    counts = check.interrupt(first)
    before = counts["line"].pop(0) - 2 * COUNT
    assert counts == {"line": [COUNT, 0], "msg": [COUNT, COUNT, 0]}, f"{counts}: samples went round, or were lost"
    await_line(node, '"participants":2')
    output(flow)
    # What has been confirmed is forwarded soon.
    into_squall(check, node, 2, "line", "line", "Line")
    counts = check.interrupt(second)
    after = counts["line"].pop(0) - COUNT
    assert counts == {"line": [0, 0], "msg": [0, 0, 0]}, f"{counts}: samples went round, or were lost"
    assert before > 0 and after > 0 and before + after <= FLOW, f"of {FLOW} samples, {before} and {after} came"
    print(f"a second bridge took over: of {FLOW} samples meanwhile, the first one forwarded {before}, and it {after}")


def main() -> None:
    # Reading from a process has no limit of its own.
    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.alarm(4 * SOON)
    check = Check(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve())
    check.build()
    try:
        node = check.dds("node", "--json")
        await_line(node, '"participants":1')
        first = check.start_bridge()
        await_line(first, '"ready"')
        await_line(node, '"participants":2')
        both_ways(check, node, first)
        departures = {(topic, of, 0) for topic in ("line", "msg") for of in ("readers", "writers")}
        check.await_events(first, departures)
        # A second bridge stands by, and takes over.
        second = check.start_bridge()
        await_line(second, '"ready"')
        await_line(node, '"participants":3')
        into_squall(check, node, 3, "line", "line", "Line")
        take_over(check, node, first, second)
        print("nothing went round, and peers that went were reported")
    finally:
        check.end()


main()
