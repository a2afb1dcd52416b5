"""Squall itself, and the bare limit that it is compared with."""

import tempfile

from .case import LATENCY, Case, Figure
from .contestant import Contestant
from .process import BUILD, ROOT, json_of, run

# Slots of a sender's ring, by message size: about as many as pay, measured with the limit program.
WINDOWS = {8: 4096, 64: 4096, 256: 4096, 1024: 1024, 10240: 256}


def window(size: int) -> int:
    return WINDOWS.get(size, max(4, min(4096, (4 << 20) // size)))


def messages(size: int, latency: bool, fast: float) -> int:
    """Messages of each sender for a run of about a second, if `fast` million small messages pass in a second."""
    if latency:
        return 100_000 if size <= 10240 else 2_000
    return max(200, int(1e6 * fast / (1 + size / 128)))


class Squall(Contestant):
    """`squall bench multicast`; the arguments name the transport."""

    def __init__(self, transport: str, binary: str | None = None, fast: float = 20.0):
        self.name = f"squall {transport}"
        self.guarantee = "atomic multicast: total order, delivered when all members have it"
        self.transport = transport
        self.binary = binary
        self.fast = fast

    def build(self) -> None:
        if self.binary is None:
            run(["cargo", "build", "--release", "--locked", "--package", "squall-cli"], cwd=ROOT, timeout=1800)
            target = json_of(run(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT))
            self.binary = f"{target['target_directory']}/release/squall"

    def takes(self, case: Case) -> bool:
        return True

    def measure(self, case: Case) -> Figure:
        latency = case.kind == LATENCY
        command = [self.binary, "bench", "multicast", "--transport", self.transport, "--members", case.members]
        command += ["--senders", "one" if latency else case.senders, "--size", case.size, "--window", window(case.size)]
        command += ["--messages", messages(case.size, latency, self.fast), "--json"]
        result = json_of(run(command + (["--latency"] if latency else [])))
        return result["latency_ns"]["p50"] if latency else result["messages_per_second"]


class SquallDurable(Squall):
    """`squall bench multicast --mode durable`, with logs on the disk of bench/target."""

    def __init__(self, transport: str, binary: str | None = None):
        super().__init__(transport, binary)
        self.guarantee = "durable atomic multicast: total order, delivered when all members have it on disk"

    def measure(self, case: Case) -> Figure:
        latency = case.kind == LATENCY
        command = [self.binary, "bench", "multicast", "--transport", self.transport, "--members", case.members]
        command += ["--mode", "durable", "--senders", "one" if latency else case.senders, "--size", case.size]
        command += ["--messages", 5_000 if latency else durable_messages(case), "--window", window(case.size), "--json"]
        with tempfile.TemporaryDirectory(dir=BUILD) as storage:
            result = json_of(run([*command, "--storage", storage, *(["--latency"] if latency else [])]))
        return result["latency_ns"]["p50"] if latency else result["messages_per_second"]


def durable_messages(case: Case) -> int:
    """Messages of each sender, so many that most segments of the logs are used again, as in one that has been in use for long."""
    senders = case.members if case.senders == "all" else 1
    return min(4_000_000, (4 << 30) // case.size) // senders


class DiskLimit(Contestant):
    """`limits/disk.c`, and for one message at a time the network's part: an atomic multicast of the same message."""

    def __init__(self, transport: str, squall: Squall):
        self.name = f"limit {transport}"
        self.guarantee = f"none: bare writes of the same bytes by as many writers, and one at a time Squall's network on {transport}"
        self.network = squall

    def build(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        self.network.build()
        run(["cc", "-O3", "-march=native", "-pthread", "-o", BUILD / "disk", ROOT / "bench" / "limits" / "disk.c"])

    def takes(self, case: Case) -> bool:
        return True

    def measure(self, case: Case) -> Figure:
        if case.kind == LATENCY:
            block = (case.size // BLOCK + 1) * BLOCK
            return self.write(case, block, 1)["latency_ns"]["p50"] + self.network.measure(case)
        return self.write(case, FRAME, 0)["bytes_per_second"] / case.size

    def write(self, case: Case, size: int, latency: int) -> dict:
        return json_of(run([BUILD / "disk", BUILD, case.members, size, DISK_SECONDS, latency]))


# A write of the log: at least a block, at most a frame.
BLOCK = 4096
FRAME = 1 << 20
DISK_SECONDS = 2


class SquallTopic(Squall):
    """`squall bench dds`; the arguments name the profile."""

    GUARANTEES = {
        "unordered": "order of one writer; a full reader rejects samples",
        "atomic": "one order for all readers, taken when all members have it",
        "in place": "as atomic; the reader is called for each sample, and reads it where it is",
        "kept": "as atomic, and kept in memory for readers that come later; up to 1024 samples under way",
        "logged": "as kept, on the disks of all members",
    }

    def __init__(self, profile: str, binary: str | None = None):
        super().__init__("shm", binary)
        self.name = f"squall {profile}"
        self.guarantee = self.GUARANTEES[profile]
        self.is_in_place = profile == "in place"
        self.profile = "atomic" if self.is_in_place else profile

    def measure(self, case: Case) -> Figure:
        command = [self.binary, "bench", "dds", "--profile", self.profile, "--subscribers", case.members - 1]
        command += ["--size", case.size, "--json"]
        if self.is_in_place:
            command.append("--in-place")
        if self.profile == "logged":
            BUILD.mkdir(parents=True, exist_ok=True)
            command += ["--storage", BUILD]
        latency = case.kind == LATENCY
        if latency:
            command.append("--latency")
        elif self.profile == "logged":
            command += ["--messages", 100_000]
        result = json_of(run(command))["profiles"][0]
        return result["latency_ns"]["p50"] if latency else result["messages_per_second"]


def objects(size: int) -> int:
    """Objects of a run of about a second."""
    return max(5, min(200, (1 << 30) // size))


class SquallBulk(Squall):
    """`squall bench rdmc`."""

    def __init__(self, transport: str, binary: str | None = None):
        super().__init__(transport, binary)
        self.guarantee = "all live receivers have the object, even if others die"

    def measure(self, case: Case) -> Figure:
        command = [self.binary, "bench", "rdmc", "--transport", self.transport, "--members", case.members]
        command += ["--size", case.size, "--objects", objects(case.size), "--json"]
        return json_of(run(command))["seconds"] * 1e9
