"""Runs members and a copy between two network namespaces, records every packet between them, and checks that nothing of what
was sent can be read there. Needs root (77 says that it cannot run); leaves nothing behind.

use: capture.py SQUALL"""

import os
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
WORD = b"nobody on the way reads this"
NAME = "a-name-that-nobody-reads"
NEAR, FAR = "10.213.7.1", "10.213.7.2"
SECONDS = 180


def sniff(interface: str, file: str) -> None:
    """Writes all that passes an interface of this namespace into a file, until it is killed."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as packets, open(file, "wb", 0) as sink:
        packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        packets.bind((interface, 0))
        print("ready", flush=True)
        while True:
            sink.write(packets.recv(1 << 16))


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=SECONDS)


class Network:
    """Two namespaces and a cable."""

    def __init__(self) -> None:
        self.near, self.far = (f"squall-{end}-{os.getpid()}" for end in ("near", "far"))

    def __enter__(self) -> "Network":
        cables = [f"sq{end}{os.getpid()}" for end in "nf"]
        try:
            for space in (self.near, self.far):
                run("ip", "netns", "add", space)
            run("ip", "link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
            for space, cable, address in ((self.near, cables[0], NEAR), (self.far, cables[1], FAR)):
                run("ip", "link", "set", cable, "netns", space)
                run("ip", "-n", space, "link", "set", cable, "name", "cable")
                run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "cable")
                run("ip", "-n", space, "link", "set", "cable", "up")
                run("ip", "-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        for space in (self.near, self.far):
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL, check=False)

    def start(self, space: str, *command: str, **options) -> subprocess.Popen:
        return subprocess.Popen(["ip", "netns", "exec", space, *command], **options)

    def record(self, folder: str, act) -> bytes:
        """What passes the cable while something is done."""
        file = os.path.join(folder, "packets")
        sniffer = self.start(
            self.near, sys.executable, __file__, "--sniff", "cable", file, stdout=subprocess.PIPE
        )
        try:
            assert sniffer.stdout.readline() == b"ready\n", "nothing can be recorded"
            act()
            time.sleep(0.3)
        finally:
            sniffer.kill()
            sniffer.wait()
        with open(file, "rb") as packets:
            return packets.read()


def control(network: Network) -> None:
    """Sends the word as it is: if this is not seen, nothing would be."""
    serve = f"import socket; s = socket.create_server(('{FAR}', 7000)); c, _ = s.accept(); print(len(c.recv(99)))"
    call = f"import socket; socket.create_connection(('{FAR}', 7000)).sendall({WORD!r})"
    with network.start(network.far, sys.executable, "-c", serve, stdout=subprocess.DEVNULL) as server:
        time.sleep(1)
        with network.start(network.near, sys.executable, "-c", call) as caller:
            assert caller.wait(SECONDS) == 0
        assert server.wait(SECONDS) == 0


def demo(squall: str, network: Network, folder: str) -> None:
    text = os.path.join(folder, "text")
    with open(text, "wb") as file:
        file.write(b"\n".join([WORD] * 1000) + b"\n")
    places = [f"netns={space},address={address}" for space, address in ((network.near, NEAR), (network.far, FAR))]
    run(squall, "demo", "--members", "2", "--transport", "tcp", "--input", text, "--at", places[0], "--at", places[1])


def copy(squall: str, network: Network, folder: str) -> None:
    secret, source, target = (os.path.join(folder, name) for name in ("secret", NAME, "target"))
    os.mkdir(target)
    with open(secret, "w", encoding="ascii") as file:
        file.write("a secret of more than sixteen bytes")
    os.chmod(secret, 0o600)
    with open(source, "wb") as file:
        file.write(WORD * 100_000)
    serve = ["serve", "--folder", target, "--secret-file", secret, "--listen", FAR, "--once"]
    with network.start(network.far, squall, *serve, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as server:
        server.stderr.readline()
        with network.start(network.near, squall, "cp", source, f"{FAR}:", "--secret-file", secret) as sender:
            assert sender.wait(SECONDS) == 0, "nothing was copied"
        assert server.wait(SECONDS) == 0
    with open(os.path.join(target, NAME), "rb") as file:
        assert file.read() == WORD * 100_000


def main() -> None:
    if os.geteuid() != 0:
        print("NOTHING IS RECORDED: network namespaces need root")
        sys.exit(SKIPPED)
    squall = os.path.abspath(sys.argv[1])
    with Network() as network, tempfile.TemporaryDirectory() as folder:
        assert WORD in network.record(folder, lambda: control(network)), "what is sent in plain text was not seen"
        for what, act in (("multicast", demo), ("copy", copy)):
            seen = network.record(folder, lambda act=act: act(squall, network, folder))
            assert len(seen) > 50_000, f"{what}: hardly anything was recorded"
            for secret in (WORD, NAME.encode(), b"sixteen bytes"):
                assert secret not in seen, f"{what}: {secret!r} can be read on the network"
            print(f"{what}: nothing to read in {len(seen):,} bytes on the network")


if __name__ == "__main__":
    if sys.argv[1] == "--sniff":
        sniff(*sys.argv[2:])
    main()
