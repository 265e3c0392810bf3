"""The present stage of loading a model, reported to a listener.

Stages are reached deep in the library that loads, in calls without another result, which report them here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

TESTING: Final = "testing"
"""The weights are read; passes are compared with plain decoding."""
MEASURING: Final = "measuring"
"""The passes are right; their cost is measured."""

_TELL: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextmanager
def stages_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` with each stage that loading reaches in this block."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


def reach(stage: str) -> None:
    """Report the beginning of a stage to the listener, if any."""
    tell = _TELL.get()
    if tell is not None:
        tell(stage)
