"""Reads cargo's JSON messages of a documentation build and fails on any warning, except an unresolved link to a
number such as `F3` or `O5`: that is a citation of an axiom or invariant, which tests/tidy.rs checks."""

import json
import re
import sys

CITATION = re.compile(r"unresolved link to `[A-Z][0-9]+[a-z]?`$")


def main() -> int:
    faults = citations = 0
    finished = False
    for line in sys.stdin:
        report = json.loads(line)
        finished = finished or (report["reason"] == "build-finished" and report["success"])
        message = report.get("message")
        if report["reason"] != "compiler-message" or message["level"] not in ("warning", "error"):
            continue
        if CITATION.match(message["message"]):
            citations += 1
        elif message["spans"]:
            faults += 1
            print(message["rendered"], file=sys.stderr)
    print(f"documentation: {faults} faults, {citations} citations")
    return 0 if finished and faults == 0 else 1


sys.exit(main())
