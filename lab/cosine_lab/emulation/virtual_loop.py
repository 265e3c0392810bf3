"""Event loops with virtual time: one jumps to the next timer instead of waiting, one keeps pace with real time."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Deadlock(RuntimeError):
    """Raised when every task waits and no timer is set."""


class _JumpingSelector(selectors.SelectSelector):
    """A selector that never blocks: it adds the timeout to the loop's clock."""

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
    """A loop whose `time()` starts at 0 and advances only by timers. It has no sockets.

    Work for a thread runs at once, since virtual time would pass any timer while a real thread runs.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> "asyncio.Future[_T]":
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtual(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time. Raises `Deadlock` where it would hang in real time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


MAX_LAG_S: Final = 0.25
"""Maximum lag behind real time that a simulation tries to catch up on."""


class _PacedSelector(selectors.SelectSelector):
    """A selector that waits for timers `speed` times as fast; calls from other threads wake it at once."""

    def __init__(self, speed: float, clock: Callable[[], float]) -> None:
        super().__init__()
        self.now_s = 0.0
        self._speed = speed
        self._clock = clock
        self._began_s = clock()

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            ready = super().select(None)
            self.now_s = max(self.now_s, self._virtual_s())
            return ready
        until_s = self.now_s + max(0.0, timeout)
        wait_s = until_s / self._speed - (self._clock() - self._began_s)
        if wait_s < -MAX_LAG_S:
            self._began_s -= wait_s
        ready = super().select(max(0.0, wait_s) if timeout > 0 else 0)
        self.now_s = min(until_s, max(self.now_s, self._virtual_s())) if ready else until_s
        return ready

    def _virtual_s(self) -> float:
        return (self._clock() - self._began_s) * self._speed


class PacedLoop(asyncio.SelectorEventLoop):
    """A loop whose `time()` starts at 0 and runs at `speed` times real time. Code between timers takes no time."""

    def __init__(self, speed: float = 1.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._paced = _PacedSelector(speed, clock)
        super().__init__(self._paced)

    def time(self) -> float:
        return self._paced.now_s


async def call_at_once(work: Callable[[], _T], /) -> _T:
    """An `Offload` without threads: work takes no virtual time."""
    return work()
