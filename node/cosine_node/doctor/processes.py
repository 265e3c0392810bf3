"""Work that may hang or crash, done where it can be given up: in daemon threads and in child processes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any, TypeVar

from cosine_protocol.errors import CosineError

_T = TypeVar("_T")


class ProbeFailed(CosineError):
    """A child process ended without an answer; the text is the last line it printed."""


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run blocking work without holding up the end of the program if it never returns."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        # The loop may be closed: then nothing waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if done.done() else result())

    def run() -> None:
        try:
            value = work()
        except BaseException as error:
            caught = error
            settle(lambda: done.set_exception(caught))
        else:
            settle(lambda: done.set_result(value))

    Thread(target=run, name="doctor", daemon=True).start()
    return await done


async def ask_child(module: str, question: dict[str, Any]) -> dict[str, Any]:
    """Run `python -P -m module` with a JSON question on stdin; its last line on stdout is the answer.

    Raises `ProbeFailed`. The child and all it started are killed if the caller stops waiting.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await process.communicate(json.dumps(question).encode())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    lines = out.decode(errors="replace").splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        answer = None
    if not process.returncode and isinstance(answer, dict):
        return answer
    last = next((line.strip() for line in reversed(err.decode(errors="replace").split("\n")) if line.strip()), "")
    code = process.returncode
    if code is not None and code < 0:
        raise ProbeFailed(f"it ended by signal {-code}{': ' + last if last else ''}")
    raise ProbeFailed(last or f"it ended with code {code}")


def answer_parent(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the question of `ask_child`, in the child process."""
    question = json.loads(sys.stdin.readline())
    sys.stdout.write("\n" + json.dumps(answer(question)) + "\n")
