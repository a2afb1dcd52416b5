"""Checks that programs of CycloneDDS and `squall dds pub|sub` exchange samples through the bridge, both ways, on loopback: text and a type
with a key as it is; that a peer that goes is reported, that samples of writers that go at once come, that a bridge that was stopped
begins again, that a second one takes over while samples come, and that nothing goes round.

use: bridge.py SQUALL SQUALL_DDS_BRIDGE FOLDER ROUNDS     (needs idlc, cc and libddsc: packages cyclonedds-tools, cyclonedds-dev, gcc)"""

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
READERS = 2  # of CycloneDDS, one after the other, for each topic
MANY = 1200  # samples out of the Squall domain: more than may be unconfirmed there
AT_ONCE = 300  # of them, by one participant
WRITERS = 4  # at the same time, that go as soon as their samples are confirmed
ROUNDS = int(sys.argv[4])  # of these
LIMIT = 4 * SOON + 2 * ROUNDS  # seconds, for all
FLOW = 3000  # samples at most while the bridge changes, 50 a second
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
    raise TimeoutError(f"signal {signal.Signals(number).name}: the check was ended, or took longer than {LIMIT} s")


class Check:
    """The processes of one run, which end with it."""

    def __init__(self, squall: str, bridge: str, folder: pathlib.Path):
        self.squall, self.bridge, self.folder = squall, bridge, folder
        self.processes: list[subprocess.Popen] = []
        self.bridges: list[subprocess.Popen] = []
        self.reports: list[str] = []  # of bridges that have ended
        self.node: subprocess.Popen | None = None  # holds the Squall domain
        self.view = 0  # that was awaited last
        self.written = 0  # samples out of the Squall domain

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

    def start_node(self) -> None:
        self.node = self.dds("node", "--json")
        self.await_participants(1, 0)

    def await_participants(self, count: int, changes: int) -> None:
        """Waits until the Squall domain has `count` participants, `changes` views or more after the last call. The node looks ten times a
        second whether its view has changed, so a participant that comes and goes in between is in no line."""
        for line in self.node.stdout:
            state = json.loads(line)
            if state["participants"] == count and state["view"] >= self.view + changes:
                self.view = state["view"]
                return
        raise AssertionError(f"the node of the Squall domain ended, and had not reported {count} participants")

    def hello(self, *arguments: object) -> subprocess.Popen:
        return self.start("./hello", *arguments)

    def start_bridge(self) -> subprocess.Popen:
        listen = f"unix:@squall-bridge-{os.getpid()}-{len(self.processes)}"
        command = ["-c", "squall.toml", "-t", "bridge.toml", "--listen", listen, "--timeout", f"{SOON}s", "--json"]
        self.bridges.append(self.start(self.bridge, *command))
        return self.bridges[-1]

    def await_events(self, bridge: subprocess.Popen, wanted: set[tuple[str, str, int]]) -> None:
        """Waits until a bridge reports these numbers of peers, after what was awaited before: the topic, `readers` or `writers`, how many."""
        while wanted:
            line = bridge.stdout.readline()
            assert line, f"the bridge ended, and has not reported these peers: {wanted}"
            wanted = wanted - {peers(json.loads(line))}

    def interrupt(self, bridge: subprocess.Popen) -> dict[str, list[int]]:
        """Ends a bridge; returns how many samples of each topic it forwarded into the Squall domain, into the RTPS domain, and dropped."""
        bridge.send_signal(signal.SIGINT)
        keys = ("into_squall", "into_rtps", "dropped")
        lines = output(bridge)
        self.reports.append("\n".join([f"{bridge.args}:", *lines]))
        events = [json.loads(line) for line in lines]
        return {event["topic"]: [event[key] for key in keys] for event in events if event["event"] == "counts"}

    def report(self) -> None:
        """Prints what the bridges have to say, so that it is known where samples were lost."""
        print(*self.reports, sep="\n")
        for bridge in (bridge for bridge in self.bridges if bridge.poll() is None):
            bridge.send_signal(signal.SIGINT)
            try:
                print(f"{bridge.args}:", bridge.communicate(timeout=SOON / 4)[0], sep="\n")
            except subprocess.TimeoutExpired:
                print(f"{bridge.args} does not end")

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


def await_readers(check: Check, topic: str, count: int) -> None:
    """Waits until the topic has this many readers in the Squall domain; each bridge has one."""
    readers = None
    while readers != count:
        topics = json.loads("".join(output(check.dds("list", "--json"))))["topics"]
        readers = next((each["readers"] for each in topics if each["name"] == topic), None)


def begin_reading(check: Check, bridges: int, topic: str, count: int) -> subprocess.Popen:
    """Starts `squall dds sub`, beside a node and `bridges` bridges, and waits until its reader has been announced."""
    reading = check.dds("sub", topic, "--count", count)
    await_readers(check, topic, bridges + 1)
    return reading


def into_squall(check: Check, bridges: int, topic: str, kind: str, rtps: str) -> None:
    """Samples of CycloneDDS come to `squall dds sub`, beside a node and `bridges` bridges."""
    reading = begin_reading(check, bridges, topic, COUNT)
    output(check.hello("write", kind, rtps, COUNT, bridges))
    came = output(reading)
    expected = [f"hello {i}" if kind == "line" else message(i % 3, f"hello {i}") for i in range(COUNT)]
    assert came == expected, f"{topic}: {came} came into the Squall domain, and not {expected}"
    await_readers(check, topic, bridges)
    print(f"{topic}: {COUNT} samples of CycloneDDS came into the Squall domain")


def come_and_go(check: Check) -> None:
    """Writers of CycloneDDS come, and go as soon as the bridge has confirmed what they have written: each sample comes to `squall dds sub`."""
    reading = begin_reading(check, 1, "line", COUNT * WRITERS * ROUNDS)
    for _ in range(ROUNDS):
        for writer in [check.hello("write", "line", "Line", COUNT, 1) for _ in range(WRITERS)]:
            output(writer)
    came = output(reading)
    expected = sorted(f"hello {i}" for i in range(COUNT) for _ in range(WRITERS * ROUNDS))
    assert sorted(came) == expected, f"{came} came into the Squall domain, and not {expected}"
    await_readers(check, "line", 1)
    print(f"line: {len(came)} samples of {WRITERS * ROUNDS} writers that went at once came into the Squall domain")


def out_of_squall(check: Check, bridge: subprocess.Popen, topic: str, kind: str, rtps: str, count: int) -> None:
    """Samples of `squall dds pub` come to a reader of CycloneDDS, and none of those that were written before it came."""
    reader = check.hello("read", kind, rtps, count, 1)
    await_line(reader, "matched")
    check.await_events(bridge, {(topic, "readers", 1)})
    samples = [f"from squall {check.written + i}" for i in range(count)]
    check.written += count
    hexadecimal = [] if kind == "line" else ["--hex"]
    sent = samples if kind == "line" else [message(i, samples[i]) for i in range(count)]
    for begin in range(0, count, AT_ONCE):
        output(check.dds("pub", topic, *sent[begin:begin + AT_ONCE], *hexadecimal))
    out = output(reader)
    expected = samples if kind == "line" else [f"{i} {samples[i]}" for i in range(count)]
    assert out == expected, f"{topic}: {out} came to CycloneDDS, and not {expected}"
    check.await_events(bridge, {(topic, "readers", 0)})
    print(f"{topic}: {count} samples of the Squall domain came to CycloneDDS")


def both_ways(check: Check, bridge: subprocess.Popen) -> None:
    for topic, kind, rtps in (("line", "line", "Line"), ("msg", "msg", "Msg")):
        into_squall(check, 1, topic, kind, rtps)
        check.await_events(bridge, {(topic, "writers", 0)})
        for _ in range(READERS):
            out_of_squall(check, bridge, topic, kind, rtps, COUNT)
    out_of_squall(check, bridge, "line", "line", "Line", MANY)


def message(user: int, text: str) -> str:
    """A `HelloWorldData::Msg` in CDR, in hexadecimal."""
    data = text.encode() + b"\0"
    cdr = bytes([0, 1, 0, 0]) + user.to_bytes(4, "little") + len(data).to_bytes(4, "little") + data
    return cdr.hex()


def take_over(check: Check, first: subprocess.Popen, second: subprocess.Popen) -> None:
    """The first bridge ends while CycloneDDS writes. Samples may be lost then, and none goes back."""
    flow = check.hello("write", "line", "Line", FLOW, 2, 20)
    await_line(flow, "matched")
    time.sleep(1)
    counts = check.interrupt(first)
    before, out = counts["line"].pop(0) - COUNT * (2 + WRITERS * ROUNDS), READERS * COUNT
    assert counts == {"line": [out + MANY, 0], "msg": [COUNT, out, 0]}, f"{counts}: samples went round, or were lost"
    check.await_participants(2, 1)
    # When it has seen that view, the second one forwards.
    output(check.dds("sub", "line", "--count", 1))
    await_readers(check, "line", 1)
    flow.send_signal(signal.SIGINT)
    written = int(output(flow)[-1])
    # What has been confirmed is forwarded soon.
    into_squall(check, 1, "line", "line", "Line")
    counts = check.interrupt(second)
    after = counts["line"].pop(0) - COUNT
    assert counts == {"line": [0, 0], "msg": [0, 0, 0]}, f"{counts}: samples went round, or were lost"
    assert before > 0 and after > 0 and before + after <= written, f"of {written} samples, {before} and {after} came"
    print(f"a second bridge took over: of {written} samples meanwhile, the first one forwarded {before}, and it {after}")


def stop_and_continue(bridge: subprocess.Popen) -> None:
    """A bridge that is stopped and continues begins its RTPS side again."""
    bridge.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    bridge.send_signal(signal.SIGCONT)
    await_line(bridge, '"restarted"')
    await_line(bridge, '"ready"')
    print("the bridge was stopped, and has begun again")


def main() -> None:
    # Reading from a process has no limit of its own.
    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.alarm(LIMIT)
    check = Check(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve())
    check.build()
    try:
        check.start_node()
        first = check.start_bridge()
        await_line(first, '"ready"')
        check.await_participants(2, 1)
        stop_and_continue(first)
        both_ways(check, first)
        come_and_go(check)
        # A second bridge stands by, and takes over.
        second = check.start_bridge()
        await_line(second, '"ready"')
        check.await_participants(3, 1)
        into_squall(check, 2, "line", "line", "Line")
        take_over(check, first, second)
        print("nothing went round, and peers that went were reported")
    except Exception:
        check.report()
        raise
    finally:
        check.end()


main()
