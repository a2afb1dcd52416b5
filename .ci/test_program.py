"""Prints the path of a test program, from what `cargo test --no-run --message-format=json` says on stdin.

use: test_program.py NAME"""

import json
import sys

name = sys.argv[1]
messages = [json.loads(line) for line in sys.stdin if line.startswith("{")]
found = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == name]
if not found:
    raise SystemExit(f"cargo has built no test program `{name}`")
print(found[-1])
