"""Checks that a benchmark printed one JSON object with the keys that scripts rely on, and sensible values.

use: squall bench … --json | bench_keys.py TRANSPORT throughput|latency|stream|round-trip|rdmc|view|object|log|dds|dds-latency"""

import json
import sys

NUMBERS = ("members", "senders", "size", "messages", "seconds", "messages_per_second", "bytes_per_second")
STREAM_NUMBERS = ("size", "messages", "seconds", "bytes_per_second", "receiver_cpu")
RDMC_NUMBERS = ("members", "size", "objects", "seconds", "bytes_per_second", "seconds_least", "seconds_most")
VIEW_NUMBERS = ("members", "rounds", "size")
OBJECT_NUMBERS = ("members", "replicas", "under_way", "updates", "seconds", "updates_per_second", "latency_us_p50")
LOG_NUMBERS = (
    "size", "appends", "latency_us_p50", "latency_us_p99", "bare_latency_us_p50", "records_per_second", "bytes_per_second",
    "bare_bytes_per_second",
)
DDS_NUMBERS = ("messages", "seconds", "messages_per_second", "bytes_per_second")
SPREADS = ("crash_to_delivery_ms", "join_stall_ms", "start_to_delivery_ms")
PERCENTILES = ("p50", "p99", "p999", "max")


def faults(result: dict, kind: str) -> list[str]:
    if kind.startswith("dds"):
        found = [] if len(result.get("profiles", [])) == 2 else ["`profiles` are not two"]
        of_each = "profile-latency" if kind.endswith("latency") else "profile"
        return found + [fault for figures in result["profiles"] for fault in faults(figures, of_each)]
    streams = {"stream": STREAM_NUMBERS, "round-trip": STREAM_NUMBERS}
    others = {"rdmc": RDMC_NUMBERS, "view": VIEW_NUMBERS, "object": OBJECT_NUMBERS, "log": LOG_NUMBERS,
              "profile": DDS_NUMBERS, "profile-latency": DDS_NUMBERS}
    numbers = (streams | others).get(kind, NUMBERS)
    found = [f"no number `{key}`" for key in numbers if not isinstance(result.get(key), (int, float))]
    found += [f"`{key}` is not above 0" for key in numbers if result.get(key, 1) <= 0]
    if numbers is STREAM_NUMBERS and not 0 <= result.get("direct_ratio", -1) <= 1:
        found.append("direct_ratio is no part")
    if numbers is STREAM_NUMBERS and not isinstance(result.get("mode_switches"), int):
        found.append("no number `mode_switches`")
    for key in SPREADS if kind == "view" else ():
        spread = result.get(key, {})
        if not 0 < spread.get("p50", 0) <= spread.get("max", 0):
            found.append(f"{key} is not a median and a maximum: {spread}")
    if kind in ("latency", "round-trip", "profile-latency"):
        values = [result.get("latency_ns", {}).get(key) for key in PERCENTILES]
        if None in values or sorted(values) != values or values[0] <= 0:
            found.append(f"latency_ns is not four ascending numbers: {values}")
    return found


def main() -> int:
    transport, kind = sys.argv[1:]
    result = json.load(sys.stdin)
    found = faults(result, kind)
    print(f"bench {transport} {kind}: " + ("; ".join(found) if found else json.dumps(result)))
    return 1 if found else 0


sys.exit(main())
