"""A program that takes part: how it is installed, started and measured."""

import contextlib

from .case import Case, Figure


class Contestant:
    """Base of all contestants. One is installed once, then in every round entered (`session`), measured in the cases
    that it takes part in, and left."""

    name = ""
    guarantee = ""  # what it promises, in a few words: figures of different promises are not rivals
    packages: list[str] = []  # Debian packages

    def build(self) -> None:
        """Builds what `measure` runs; packages are installed by then."""

    def takes(self, case: Case) -> bool:
        """Whether it can run this case."""
        raise NotImplementedError

    @contextlib.contextmanager
    def session(self):
        """Whatever has to run while cases are measured."""
        yield

    def measure(self, case: Case) -> Figure:
        """Runs the case once."""
        raise NotImplementedError
