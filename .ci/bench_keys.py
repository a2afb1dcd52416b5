"""Checks that a benchmark printed one JSON object with the keys that scripts rely on, and sensible values.

use: squall bench … --json | bench_keys.py TRANSPORT throughput|latency|stream|round-trip"""

import json
import sys

NUMBERS = ("members", "senders", "size", "messages", "seconds", "messages_per_second", "bytes_per_second")
STREAM_NUMBERS = ("size", "messages", "seconds", "bytes_per_second", "receiver_cpu")
PERCENTILES = ("p50", "p99", "p999", "max")


def faults(result: dict, kind: str) -> list[str]:
    numbers = STREAM_NUMBERS if kind in ("stream", "round-trip") else NUMBERS
    found = [f"no number `{key}`" for key in numbers if not isinstance(result.get(key), (int, float))]
    found += [f"`{key}` is not above 0" for key in numbers if result.get(key, 1) <= 0]
    if numbers is STREAM_NUMBERS and not 0 <= result.get("direct_ratio", -1) <= 1:
        found.append("direct_ratio is no part")
    if numbers is STREAM_NUMBERS and not isinstance(result.get("mode_switches"), int):
        found.append("no number `mode_switches`")
    if kind in ("latency", "round-trip"):
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
