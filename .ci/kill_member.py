"""Kills one member of a running demo and checks that the others go on and agree, say so, and leave nothing behind.

use: kill_member.py SQUALL TRANSPORT [OPTION...]   (options of `squall demo`)"""

import os
import signal
import subprocess
import sys
import time

MEMBERS = 3
ROUNDS = {"shm": 200_000, "auto": 200_000, "tcp": 60_000, "verbs": 1_000}  # of the whole text: enough that the demo still runs when a member is killed
ROUNDS_USUAL = 30_000
BEGIN_SECONDS = 60  # within which the members must be at work
END_SECONDS = 300  # within which the others must be done


def children(parent: int) -> list[int]:
    """The processes whose parent is `parent`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry))
    return sorted(found)


def left_behind() -> set[str]:
    return {f"{folder}/{name}" for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder) if "squall" in name}


def wait_for_members(demo: subprocess.Popen) -> list[int]:
    until = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < until and demo.poll() is None:
        members = children(demo.pid)
        if len(members) >= MEMBERS:
            return members
        time.sleep(0.01)
    raise SystemExit(f"the demo has no {MEMBERS} member processes (exit status {demo.poll()})")


def wait_for_progress(demo: subprocess.Popen) -> None:
    """Until the demo tells how far the members are, which it does every few seconds."""
    said = []

    def too_late(*_) -> None:
        raise SystemExit(f"the members were not at work within {BEGIN_SECONDS} s; the demo said:\n" + "".join(said))

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(BEGIN_SECONDS)
    for line in demo.stdout:
        said.append(line.decode(errors="replace"))
        if said[-1].startswith("members at"):
            signal.alarm(0)
            return
    raise SystemExit("the demo was over before a member could be killed; it said:\n" + "".join(said))


def main() -> int:
    squall, transport, *options = sys.argv[1:]
    before = left_behind()
    command = [squall, "demo", "--calm", "--members", str(MEMBERS), "--transport", transport, "--rounds", str(ROUNDS.get(transport, ROUNDS_USUAL))]
    command += options
    demo = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        members = wait_for_members(demo)
        wait_for_progress(demo)
        os.kill(members[-1], signal.SIGKILL)
        killed = time.monotonic()
        output = demo.communicate(timeout=END_SECONDS)[0].decode(errors="replace")
    finally:
        demo.kill()
    seconds = time.monotonic() - killed
    print(f"{transport}: the demo ended {seconds:.1f} s after the kill with status {demo.returncode}, saying:")
    print("\n".join(output.splitlines()[-8:]))
    faults = []
    if demo.returncode <= 0:
        faults.append("the exit status does not tell that a member died")
    if "logs of the others are the same" not in output:
        faults.append("the others did not go on, or do not agree")
    if "is gone" not in output:
        faults.append("no other member says that one is gone")
    if "panicked" in output:
        faults.append("somebody panicked")
    alive = [member for member in members if os.path.exists(f"/proc/{member}")]
    if alive:
        faults.append(f"processes still run: {alive}")
    if left_behind() - before:
        faults.append(f"left behind: {sorted(left_behind() - before)}")
    print("; ".join(faults) if faults else "nothing is left behind")
    return 1 if faults else 0


sys.exit(main())
