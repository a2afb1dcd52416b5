"""Checks that programs of CycloneDDS and `squall dds pub|sub` exchange samples through the bridge, both ways, on loopback: text and a type
with a key as it is; that a peer that goes is reported, and that nothing goes round.

use: bridge.py SQUALL SQUALL_DDS_BRIDGE FOLDER     (needs idlc, cc and libddsc: packages cyclonedds-tools, cyclonedds-dev, gcc)"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent / "bridge"
SOON = 60  # seconds; longer than anything here takes on a busy machine
DOMAIN = 17
COUNT = 5
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


class Check:
    """The processes of one run, which end with it."""

    def __init__(self, squall: str, bridge: str, folder: pathlib.Path):
        self.squall, self.bridge, self.folder = squall, bridge, folder
        self.processes: list[subprocess.Popen] = []

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
                                   stdout=subprocess.PIPE, text=True)
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

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


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
    # Its reader is announced after the view.
    time.sleep(1)
    output(check.hello("write", kind, rtps, COUNT))
    came = output(reading)
    expected = [f"hello {i}" if kind == "line" else message(i % 3, f"hello {i}") for i in range(COUNT)]
    assert came == expected, f"{topic}: {came} came into the Squall domain, and not {expected}"
    await_line(node, f'"participants":{others}')
    print(f"{topic}: {COUNT} samples of CycloneDDS came into the Squall domain")


def both_ways(check: Check, node: subprocess.Popen) -> None:
    for topic, kind, rtps in (("line", "line", "Line"), ("msg", "msg", "Msg")):
        into_squall(check, node, 2, topic, kind, rtps)
        reader = check.hello("read", kind, rtps, COUNT)
        await_line(reader, "matched")
        time.sleep(1)
        samples = [f"from squall {i}" for i in range(COUNT)]
        hexadecimal = [] if kind == "line" else ["--hex"]
        sent = samples if kind == "line" else [message(i, samples[i]) for i in range(COUNT)]
        output(check.dds("pub", topic, *sent, *hexadecimal))
        out = output(reader)
        expected = samples if kind == "line" else [f"{i} {samples[i]}" for i in range(COUNT)]
        assert out == expected, f"{topic}: {out} came to CycloneDDS, and not {expected}"
        print(f"{topic}: {COUNT} samples of the Squall domain came to CycloneDDS")


def message(user: int, text: str) -> str:
    """A `HelloWorldData::Msg` in CDR, in hexadecimal."""
    data = text.encode() + b"\0"
    cdr = bytes([0, 1, 0, 0]) + user.to_bytes(4, "little") + len(data).to_bytes(4, "little") + data
    return cdr.hex()


def await_departures(bridge: subprocess.Popen) -> list[dict]:
    """What a bridge reports, until readers and writers of both topics have gone."""
    events, missing = [], {(topic, of) for topic in ("line", "msg") for of in ("readers", "writers")}
    for line in bridge.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "peers" and events[-1]["now"] == 0:
            missing.discard((events[-1]["topic"], events[-1]["of"]))
        if not missing:
            return events
    raise AssertionError(f"the bridge ended, and has not reported that these went: {missing}")


def expect(events: list[dict], forwarded: dict[str, list[int]]) -> None:
    """Each topic has forwarded this much into the Squall domain and into the RTPS domain, and dropped this much."""
    keys = ("into_squall", "into_rtps", "dropped")
    found = {event["topic"]: [event[key] for key in keys] for event in events if event["event"] == "counts"}
    assert found == forwarded, f"{found} and not {forwarded}: samples went round, or were lost"


def main() -> None:
    # Reading from a process has no limit of its own.
    signal.alarm(4 * SOON)
    check = Check(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve())
    check.build()
    try:
        node = check.dds("node", "--json")
        await_line(node, '"participants":1')
        first = check.start_bridge()
        await_line(first, '"ready"')
        await_line(node, '"participants":2')
        both_ways(check, node)
        events = await_departures(first)
        # A second bridge stands by, and takes over.
        second = check.start_bridge()
        await_line(second, '"ready"')
        await_line(node, '"participants":3')
        into_squall(check, node, 3, "line", "line", "Line")
        first.send_signal(signal.SIGINT)
        events += [json.loads(line) for line in output(first)]
        expect(events, {"line": [2 * COUNT, COUNT, 0], "msg": [COUNT, COUNT, 0]})
        await_line(node, '"participants":2')
        # It looks for other bridges ten times in a second.
        time.sleep(1)
        into_squall(check, node, 2, "line", "line", "Line")
        second.send_signal(signal.SIGINT)
        expect([json.loads(line) for line in output(second)], {"line": [COUNT, 0, 0], "msg": [0, 0, 0]})
        print("nothing went round, peers that went were reported, and a second bridge took over")
    finally:
        check.end()


main()
