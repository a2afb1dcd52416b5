#!/usr/bin/env python3
"""Opens the page of `squall top --serve` in headless Chromium while a group of three runs, one of which is killed; fails if the page does
not show what the members do. Also loads the traces of the members, whose slices have to nest.

use: page.py SQUALL [SCREENSHOT]   (the built program; where a picture of the page goes)"""

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE_SECONDS = 60
MEMBERS = 3


def free_ports(count):
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Browser:
    """Headless Chromium, by the WebDriver protocol."""

    def __init__(self, port):
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}/session"
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1320,420"]
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}}
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.base += "/" + self.ask("", {"capabilities": wanted})["sessionId"]
                return
            except urllib.error.URLError:
                assert self.driver.poll() is None and time.monotonic() < until, "chromedriver does not answer"
                time.sleep(0.1)

    def ask(self, path, body=None, method=None):
        """The value that the driver answers with."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return json.load(answer)["value"]

    def run(self, script):
        """What a function on the page returns."""
        return self.ask("/execute/sync", {"script": script, "args": []})

    def close(self):
        try:
            self.ask("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()


def check_nesting(events):
    """Slices of one track are within each other, or apart."""
    tracks = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
    for slices in tracks.values():
        ends = []
        for begin, dur in sorted(slices):
            end = begin - dur
            while ends and ends[-1] <= begin + 1e-3:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-3, f"a slice from {begin} to {end} µs overlaps one that ends at {ends[-1]} µs"
            ends.append(end)
    return sum(len(slices) for slices in tracks.values())


ROWS = "return [...document.querySelectorAll('#members tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
HIDDEN = "return [...document.querySelectorAll('th')].filter((cell) => !cell.offsetParent).map((cell) => cell.textContent)"
CHANGES = "return [...document.querySelectorAll('#changes li')].map((item) => item.textContent)"
LINES = "return document.querySelectorAll('#members polyline').length"


def check_page(browser, ports):
    """Waits until the page shows two members that are ready and deliver, and one that is silent."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        rows = {row[0]: row for row in browser.run(ROWS)}
        members = [rows.get(f"127.0.0.1:{port}", [""] * 15) for port in ports]
        states = [member[3] for member in members]
        delivers = all(member[5] not in ("", "–", "0") for member in members[:-1])
        carries = all(member[column].endswith("B") and member[column] != "0 B" for member in members[:-1] for column in (-3, -2))
        if states == ["ready", "ready", "silent"] and delivers and carries:
            break
        assert time.monotonic() < until, f"the page shows {rows}"
        time.sleep(0.2)
    assert all(member[-6].endswith("%") for member in members[:-1]), f"no part of the time with a full window: {rows}"
    hidden = browser.run(HIDDEN)
    assert hidden == ["to disk", "log/s"], f"a group without a log hides {hidden}"
    changes = browser.run(CHANGES)
    assert any("view 1: 2 members; 1 gone" in change for change in changes), changes
    assert browser.run(LINES) == MEMBERS, "a member has no line of its rates"
    assert "does not answer" in browser.run("return document.getElementById('state').textContent")


def check_refusal(port):
    """A browser that came here by the name of another site gets nothing."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/events", headers={"Host": f"other.example:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            raise AssertionError(f"a request for another host was answered: {answer.status}")
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 421 and b"other.example" in refusal.read(), refusal


def main(program, screenshot=None):
    program = Path(program).resolve()
    ports = free_ports(2 * MEMBERS + 2)
    members, metrics, (page, driver) = ports[:MEMBERS], ports[MEMBERS : 2 * MEMBERS], ports[-2:]
    folder = Path(tempfile.mkdtemp(prefix="squall-page-"))
    contacts = ", ".join(f'"127.0.0.1:{port}"' for port in members)
    (folder / "squall.toml").write_text(
        f'cluster = "page"\nsecret = "{secrets.token_hex(16)}"\ncontacts = [{contacts}]\nmembers = {MEMBERS}\n'
        '[subgroups.log]\nmessage_max = "4KiB"\n'
    )
    running, sender = [], None
    # A time limit ends all of it, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def start(*arguments, **options):
        process = subprocess.Popen([program, *arguments, "-c", "squall.toml"], cwd=folder, **options)
        running.append(process)
        return process

    try:
        nodes = [
            start("node", "--listen", f"127.0.0.1:{port}", "--rank", str(rank), "--metrics", f"127.0.0.1:{shown}",
                  "--trace", f"{rank}.json", stdout=subprocess.DEVNULL, stderr=open(folder / f"{rank}.log", "w"))
            for rank, (port, shown) in enumerate(zip(members, metrics))
        ]
        until = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run([program, "status", "-c", "squall.toml"], cwd=folder, capture_output=True).returncode != 0:
            assert time.monotonic() < until, "the members did not come together"
            time.sleep(0.1)
        sender = subprocess.Popen(
            f"yes 'a line' | '{program}' send -c squall.toml log", shell=True, cwd=folder, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        nodes[-1].kill()
        time.sleep(1)
        top = start("top", "--serve", f"127.0.0.1:{page}", stdout=subprocess.PIPE, text=True)
        assert f"http://127.0.0.1:{page}/" in top.stdout.readline()
        browser = Browser(driver)
        try:
            browser.ask("/url", {"url": f"http://127.0.0.1:{page}/"})
            check_page(browser, members)
            if screenshot:
                Path(screenshot).write_bytes(base64.b64decode(browser.ask("/screenshot")))
        finally:
            browser.close()
        print("the page shows the members")
        check_refusal(page)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics[0]}/trace", timeout=PATIENCE_SECONDS) as answer:
            one = json.load(answer)
        made = subprocess.run([program, "trace", "-c", "squall.toml", "--out", "all.json"], cwd=folder, capture_output=True)
        assert made.returncode in (0, 1), made.stderr  # one member does not answer
        together = json.loads((folder / "all.json").read_text())
        print(f"slices that nest: {check_nesting(one)} of a member, {check_nesting(together)} of all")
        end_sender(sender)
        for node in nodes[:-1]:
            node.send_signal(signal.SIGTERM)
        for rank, node in enumerate(nodes[:-1]):
            node.wait(timeout=PATIENCE_SECONDS)
            check_nesting(json.loads((folder / f"{rank}.json").read_text()))
        print("each member has left a trace")
    finally:
        for process in running:
            process.kill()
            process.wait()
        if sender is not None:
            end_sender(sender)
        shutil.rmtree(folder)


def end_sender(sender):
    """Ends the shell that sends, and all that it has started."""
    try:
        os.killpg(sender.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
