"""Runs in virtual time in which no task, callback or log line may hide an error."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from cosine_lab.emulation.virtual_loop import VirtualLoop
from cosine_protocol.errors import CosineError, LocalProtocolError
from tests.fuzz.mutation import mutated_moves
from tests.fuzz.target import FuzzTarget, Mutate

STREAM_RUNS: Final = 1_500
STREAM_BYTES: Final = 6_000
"""Bounds of targets whose every input is a run in virtual time."""


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not _is_ours(error):
            self.found.append(error)


def _is_ours(error: BaseException) -> bool:
    return isinstance(error, CosineError) and not isinstance(error, LocalProtocolError)


def run_watched(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in virtual time. Raises the first error that is not ours, from any task."""
    errors = _Errors()
    tasks: list[asyncio.Task[Any]] = []

    def start(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **options)
        tasks.append(task)
        return task

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not _is_ours(error):
            errors.found.append(error)

    root = logging.getLogger()
    root.addHandler(errors)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            loop.set_task_factory(start)
            loop.set_exception_handler(note)
            runner.run(main)
    finally:
        root.removeHandler(errors)
    for task in tasks:
        error = None if not task.done() or task.cancelled() else task.exception()
        if error is not None and not _is_ours(error):
            errors.found.append(error)
    if errors.found:
        raise errors.found[0]


def stream_target(
    act: Callable[[bytes], Coroutine[Any, Any, None]],
    seeds: Callable[[], Sequence[bytes]],
    *,
    mutate: Mutate = mutated_moves,
) -> FuzzTarget:
    """A target whose input is the moves of a hostile peer, which `act` plays."""
    return FuzzTarget(
        check=lambda data: run_watched(act(data)),
        seeds=seeds,
        runs=STREAM_RUNS,
        mutate=mutate,
        max_bytes=STREAM_BYTES,
    )
