"""Squall between the hosts of a lab (`squall lab`), in several networks, beside plain TCP and etcd in the same network."""

import json
import pathlib
import statistics
import tempfile

from .process import BUILD, ROOT, Failed, json_of, run
from .rounds import say

# Conditions of all links; none: a bridge of the kernel, otherwise a switch in user space.
NETWORKS = {
    "no faults": "",
    "0.5 ms": "delay=500us",
    "5 ms": "delay=5ms",
    "50 ms": "delay=50ms",
    "0.1 % lost": "loss=0.1%",
    "1 % lost": "loss=1%",
    "5 % lost": "loss=5%",
    "50 ms, 1 % lost": "delay=50ms,loss=1%",
    "5 % out of order": "reorder=5%",
    "5 % twice": "duplicate=5%",
    "1 % damaged": "corrupt=1%",
    "10 Mbit/s": "rate=10Mbit",
    "1 Mbit/s": "rate=1Mbit",
}
SECONDS = 3
# Messages that a sender of `squall bench multicast` has under way.
WINDOW = 256
# A run has to end, whatever the network.
PATIENCE = 150


def lab(network: str) -> list[str]:
    return [f"--lab={network}" if network else "--lab"]


def on_hosts(squall: str, network: str, hosts: int, command: list) -> dict:
    """Runs a command on each host; the JSON object that one of them prints."""
    links = [word for part in network.split(",") if part for word in (f"--{part.split('=')[0]}", part.split("=")[1])]
    output = run([squall, "lab", "--hosts", hosts, *links, "--each", "--", *command], timeout=PATIENCE)
    found = [line[line.index("{"):] for line in output.splitlines() if "{" in line]
    if not found:
        raise Failed(f"no figures in: {output[-500:]}")
    return json.loads(found[-1])


def plain_rate(squall: str, network: str, receivers: int) -> float:
    figures = on_hosts(squall, network, 3, [BUILD / "streams", "{host}", "{addresses}", "rate", receivers, SECONDS])
    return statistics.mean(figures["bytes_per_second"]) / 1e6


def plain_trip(squall: str, network: str) -> float:
    return on_hosts(squall, network, 3, [BUILD / "streams", "{host}", "{addresses}", "trip", 64, SECONDS])["p50_ns"] / 1e3


def multicast(squall: str, network: str, size: int, count: int, *extra) -> dict:
    command = [squall, "bench", "multicast", "--transport", "tcp", "--members", 3, "--senders", "one", "--size", size]
    return json_of(run([*command, "--messages", count, "--json", *extra, *lab(network)], timeout=PATIENCE))


def multicast_rate(squall: str, network: str, size: int, fast: float, encryption: str, *extra) -> float:
    """Messages per second of about `SECONDS`, if plain TCP carries `fast` bytes per second there."""
    most = min({8192: 60_000, 64: 1_500_000}[size], WINDOW / round_trip(network), 20_000 if "loss=5%" in network else 1e9)
    count = int(max(64, min(most * SECONDS, SECONDS * fast / size)))
    return multicast(squall, network, size, count, "--encryption", encryption, *extra)["messages_per_second"]


def round_trip(network: str) -> float:
    """At least so many seconds pass before a message is delivered."""
    return 0.1 if "50ms" in network else 0.01 if "5ms" in network else 1e-4


def trips(network: str, most: int) -> int:
    """So many messages one at a time that it takes some seconds."""
    slow = {"50ms": 60, "5ms": 300, "1Mbit": 200, "loss=5%": 1_000, "reorder": 1_000, "corrupt": 1_000}
    return min([most, *(count for word, count in slow.items() if word in network)])


def multicast_trip(squall: str, network: str, encryption: str) -> float:
    count = trips(network, 20_000)
    return multicast(squall, network, 64, count, "--latency", "--encryption", encryption)["latency_ns"]["p50"] / 1e3


def durable(squall: str, network: str, latency: bool) -> float:
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as storage:
        extra = ["--mode", "durable", "--storage", storage]
        if latency:
            return multicast(squall, network, 256, trips(network, 2_000), "--latency", *extra)["latency_ns"]["p50"] / 1e3
        count = 2_000 if "1Mbit" in network else 100_000
        return multicast(squall, network, 256, count, *extra)["messages_per_second"]


def updates(squall: str, network: str, under_way: int, replicas: int) -> dict:
    command = [squall, "bench", "object", "--transport", "tcp", "--members", 3, "--replicas", replicas, "--under-way", under_way]
    return json_of(run([*command, "--seconds", SECONDS, "--json", *lab(network)], timeout=PATIENCE))


def topics(squall: str, network: str, latency: bool) -> float:
    command = [squall, "bench", "dds", "--transport", "tcp", "--profile", "atomic", "--subscribers", 2, "--size", 64, "--json", *lab(network)]
    count = trips(network, 5_000) if latency else 10_000 if "Mbit" in network or "50ms" in network else 300_000
    figures = json_of(run([*command, "--messages", count, *(["--latency"] if latency else [])], timeout=PATIENCE))["profiles"][0]
    return figures["latency_ns"]["p50"] / 1e3 if latency else figures["messages_per_second"]


def etcd(squall: str, network: str, clients: int) -> dict:
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        program = [ROOT / "bench" / "peers" / "etcd" / "host", "{host}", "{addresses}", folder, BUILD / "etcdpeer"]
        return on_hosts(squall, network, 4, [*program, clients, 256, SECONDS])


# Name, unit, and how it is measured: with the program, the network and what plain TCP carries to both.
COLUMNS = {
    "plain TCP to one": ("MB/s", lambda s, n, _: plain_rate(s, n, 1)),
    "plain TCP to two": ("MB/s", lambda s, n, _: plain_rate(s, n, 2)),
    "multicast, 8 KiB": ("MB/s", lambda s, n, fast: 8192e-6 * multicast_rate(s, n, 8192, fast, "off")),
    "the same, encrypted": ("MB/s", lambda s, n, fast: 8192e-6 * multicast_rate(s, n, 8192, fast, "on")),
    "multicast, 64 B": ("1,000/s", lambda s, n, fast: 1e-3 * multicast_rate(s, n, 64, fast, "off")),
    "topic, 64 B": ("1,000/s", lambda s, n, _: 1e-3 * topics(s, n, False)),
    "durable, 256 B": ("1,000/s", lambda s, n, _: 1e-3 * durable(s, n, False)),
    "etcd, 64 clients": ("1,000/s", lambda s, n, _: 1e-3 * etcd(s, n, 64)["messages_per_second"]),
    "object, 64 under way": ("1,000/s", lambda s, n, _: 1e-3 * updates(s, n, 64, 3)["updates_per_second"]),
    "sharded object, 64 under way": ("1,000/s", lambda s, n, _: 1e-3 * updates(s, n, 64, 2)["updates_per_second"]),
    "plain TCP, 64 B and back": ("µs", lambda s, n, _: plain_trip(s, n)),
    "multicast, one at a time": ("µs", lambda s, n, _: multicast_trip(s, n, "off")),
    "the same, encrypted, one at a time": ("µs", lambda s, n, _: multicast_trip(s, n, "on")),
    "topic, one at a time": ("µs", lambda s, n, _: topics(s, n, True)),
    "object, one at a time": ("µs", lambda s, n, _: updates(s, n, 1, 3)["latency_us_p50"]),
    "durable, one at a time": ("µs", lambda s, n, _: durable(s, n, True)),
    "etcd, one client": ("µs", lambda s, n, _: 1e-3 * etcd(s, n, 1)["latency_ns"]["p50"]),
}


def play(squall: str, networks: list[str], columns: list[str], rounds: int) -> dict:
    """All figures: by network and column, one for each round."""
    BUILD.mkdir(parents=True, exist_ok=True)
    run(["cc", "-O2", "-o", BUILD / "streams", ROOT / "bench" / "limits" / "streams.c"])
    found: dict = {network: {column: [] for column in columns} for network in networks}
    for turn in range(rounds):
        for network in networks:
            fast = plain_rate(squall, NETWORKS[network], 2) * 1e6
            for column in columns:
                try:
                    figure = COLUMNS[column][1](squall, NETWORKS[network], fast)
                except (Failed, KeyError) as error:
                    say(f"round {turn + 1}/{rounds}  {network:18} {column:36} FAILED: {str(error)[-300:]}")
                    continue
                found[network][column].append(figure)
                say(f"round {turn + 1}/{rounds}  {network:18} {column:36} {words(figure)} {COLUMNS[column][0]}")
    return found


def words(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def table(found: dict, columns: list[str]) -> str:
    lines = ["| network | " + " | ".join(f"{column}, {COLUMNS[column][0]}" for column in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for network, figures in found.items():
        cells = [words(statistics.median(figures[column])) if figures.get(column) else "–" for column in columns]
        lines.append(f"| {network} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def tables(found: dict, columns: list[str]) -> str:
    """One of rates, one of times, and one of both beside plain TCP and etcd."""
    parts = [[column for column in columns if (COLUMNS[column][0] == "µs") == times] for times in (False, True)]
    return "\n\n".join([*(table(found, part) for part in parts if part), shares(found, columns)])


# What is compared with what.
SHARES = [
    ("multicast, 8 KiB", "plain TCP to two"),
    ("the same, encrypted", "plain TCP to two"),
    ("durable, 256 B", "etcd, 64 clients"),
    ("multicast, one at a time", "plain TCP, 64 B and back"),
    ("the same, encrypted, one at a time", "plain TCP, 64 B and back"),
    ("object, one at a time", "plain TCP, 64 B and back"),
    ("durable, one at a time", "etcd, one client"),
]


def shares(found: dict, columns: list[str]) -> str:
    pairs = [pair for pair in SHARES if set(pair) <= set(columns)]
    lines = ["| network | " + " | ".join(f"{one} / {other}" for one, other in pairs) + " |", "|---" * (len(pairs) + 1) + "|"]
    for network, figures in found.items():
        ratios = [statistics.median(figures[one]) / statistics.median(figures[other]) if figures.get(one) and figures.get(other) else None
                  for one, other in pairs]
        lines.append(f"| {network} | " + " | ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios) + " |")
    return "\n".join(lines)


def save(folder: pathlib.Path, name: str, about: str, found: dict, columns: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = f"# Between hosts\n\n{about}\n\n{tables(found, columns)}\n"
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
