import asyncio
import logging
import signal
import subprocess
import sys
from typing import Final

import pytest

from cosine_node.terminal.interrupts import log_unhandled_error, run_until_stopped

STUBBORN: Final = """
import asyncio, os, signal
from cosine_node.terminal.interrupts import run_until_stopped

async def work(stop):
    os.kill(os.getpid(), signal.FIRST)
    await stop.wait()
    print("asked to stop", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()

run_until_stopped(work)
"""
"""A node that is asked to stop and never does."""


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_an_interrupt_after_a_signal_leaves_at_once(first: str) -> None:
    program = STUBBORN.replace("FIRST", first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "asked to stop\n", "")


def test_signals_are_handled_afterwards_as_before() -> None:
    async def work(_: asyncio.Event) -> None:
        pass

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run_until_stopped(work)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_peer_that_hangs_up_at_once_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio reports a callback of a listening socket that raises, provoked as the network library does."""

    async def read_who(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    async def fail(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()
        raise ValueError("a fault of ours")

    async def hang_up_on(callback: object) -> None:
        asyncio.get_running_loop().set_exception_handler(log_unhandled_error)
        server = await asyncio.start_server(callback, "127.0.0.1", 0)  # type: ignore[arg-type]
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.close()
            await writer.wait_closed()
            for _ in range(1000):
                if not caplog.records:
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG, logger="cosine_node"):
        asyncio.run(hang_up_on(read_who))
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    caplog.clear()
    asyncio.run(hang_up_on(fail))
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
