"""The stage that loading a model has reached, told to who waits for it.

It is reached deep in the library that loads, under calls that have nothing else to tell: they name it here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

TESTING: Final = "testing"
"""The weights are read; the passes over them are compared with plain decoding."""
MEASURING: Final = "measuring"
"""The passes are right; now it is measured what they take."""

_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextmanager
def stages_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Have `tell` called with each stage that loading reaches in this block."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def reach(stage: str) -> None:
    """Tell that a stage begins, if anybody waits for it."""
    tell = _TELL.get()
    if tell is not None:
        tell(stage)
