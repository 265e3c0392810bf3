"""An asyncio event loop whose time jumps to the next timer instead of waiting: one seed, one exact run."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Deadlock(RuntimeError):
    """Every task waits for something that will never happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Never blocks: the time `select` would have waited is added to the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock("no task can run and no timer is set")
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and advances only through timers. Threads and sockets do not belong here."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end in virtual time. Raises `Deadlock` where real time would hang."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
