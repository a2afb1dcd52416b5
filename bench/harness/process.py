"""Starts programs, reads the JSON object that each prints, and ends what was started."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "bench" / "target"
RUN_SECONDS_MAX = 120


class Failed(Exception):
    """A program did not do what it should; the message says which and why."""


def run(command: list, timeout: float = RUN_SECONDS_MAX, **options) -> str:
    """Runs a program to its end and returns what it printed. Whatever it has started ends with it."""
    words = [str(word) for word in command]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(words, text=True, start_new_session=True, **pipes, **options)
    except FileNotFoundError as error:
        raise Failed(f"{words[0]} is not there: {error}") from error
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{' '.join(words)}: not done after {timeout} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise Failed(f"{' '.join(words)}: status {process.returncode}\n{(output + errors)[-2000:]}")
    return output


def json_of(output: str) -> dict:
    """The last line that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise Failed(f"no JSON object in:\n{output[-2000:]}")


@contextlib.contextmanager
def background(commands: list[list], log: pathlib.Path, **options):
    """Runs programs in the background, each in a process group of its own, and ends them and what they started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    started = []
    with log.open("wb") as file:
        try:
            for command in commands:
                words = [str(word) for word in command]
                started.append(subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                    start_new_session=True, **options,
                ))
            yield started
        finally:
            end(started)


def end(processes: list[subprocess.Popen]) -> None:
    """Asks the process groups to end, then kills what is left of them."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        until = time.monotonic() + 3
        while time.monotonic() < until and any(process.poll() is None for process in processes):
            time.sleep(0.05)


def wait_until(condition, seconds: float, what: str) -> None:
    """Waits for `condition()`; `Failed` says `what` did not come."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.05)
