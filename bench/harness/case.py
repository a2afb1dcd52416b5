"""What is measured: a case, and what one run of it yields."""

from dataclasses import dataclass

THROUGHPUT = "throughput"
LATENCY = "latency"
BULK = "bulk"


@dataclass(frozen=True)
class Case:
    """One measurement: `members` processes, of which `senders` send messages of `size` bytes."""

    kind: str
    members: int
    senders: str  # "all" or "one"
    size: int

    @property
    def title(self) -> str:
        if self.kind == BULK:
            return f"{self.members} processes, {bytes_in_words(self.size)}"
        what = "one at a time" if self.kind == LATENCY else f"{self.senders} sending"
        return f"{self.members} members, {what}, {bytes_in_words(self.size)}"


# One run: messages per second at each receiver (throughput), or nanoseconds at the median (latency; bulk: until the last
# receiver has the object).
Figure = float


def bytes_in_words(size: int) -> str:
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def figure_in_words(kind: str, figure: Figure | None) -> str:
    if figure is None:
        return "–"
    if kind in (LATENCY, BULK):
        return f"{figure:.0f} ns" if figure < 10_000 else f"{figure / 1e3:.1f} µs" if figure < 1e7 else f"{figure / 1e6:.1f} ms"
    for unit, name in ((1e6, "M/s"), (1e3, "k/s")):
        if figure >= unit:
            return f"{figure / unit:.3g} {name}"
    return f"{figure:.0f}/s"
