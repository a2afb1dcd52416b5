"""Prints the path of a test program, from what `cargo test --no-run --message-format=json` says on stdin.

use: test_program.py SOURCE   (below the root of the repository, crates/squall/tests/group.rs)"""

import json
import sys

source = sys.argv[1]
messages = [json.loads(line) for line in sys.stdin if line.startswith("{")]
found = [m["executable"] for m in messages if m.get("executable") and m["target"]["src_path"].endswith("/" + source)]
if not found:
    raise SystemExit(f"cargo has built no test program of `{source}`")
print(found[-1])
