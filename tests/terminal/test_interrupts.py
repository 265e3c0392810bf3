"""Ctrl-C ends `generate` and `status` at any moment with exit code 130 and no further output.

Nodes end on a signal once their requests are done, and at once on a second one.
"""

import asyncio
import logging
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cosine_terminal.interrupts import log_unhandled_error, run_until_stopped
from tests.cosine_p2p.samples import identity_of

PROGRAM: Final = """
import asyncio, os, signal, subprocess, sys
from cosine_terminal.interrupts import leave_on_interrupt, run_interruptibly

async def work():
    # It shares our stdout, so a reader also waits for the child.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            STUBBORN

leave_on_interrupt()
run_interruptibly(work())
"""


@pytest.fixture
def silent_peer() -> Iterator[str]:
    """The address of a peer that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/p2p/{identity_of(1).peer_id}"


def interrupted(arguments: list[str], folder: Path, *, after: str, transport: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a command that gets SIGINT after a line that begins with `after`."""
    names = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
    process = subprocess.Popen(
        [sys.executable, "-m", "cosine_node", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {name: str(folder) for name in names} | {"COSINE_TRANSPORT": transport},
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip())
        if line.startswith(after):
            process.send_signal(signal.SIGINT)
            break
    lines += process.stderr.read().splitlines()
    return process.wait(), lines


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("command", "transport"),
    [(["generate", "hi"], "light"), (["status", "--watch"], "full")],
)
def test_it_leaves_during_discovery(silent_peer: str, tmp_path: Path, command: list[str], transport: str) -> None:
    arguments = [*command, "--initial-peers", silent_peer]
    code, lines = interrupted(arguments, tmp_path, after="Looking for peers", transport=transport)
    assert code == 130
    assert lines[-1] == "Interrupted."
    assert all(line.endswith(" ...") for line in lines[:-1]), lines


@pytest.mark.thorough
@pytest.mark.parametrize("stubborn", ["raise", "pass"])
def test_children_go_too_whether_the_work_lets_itself_be_cancelled_or_not(stubborn: str) -> None:
    program = PROGRAM.replace("STUBBORN", stubborn)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


STUBBORN: Final = """
import asyncio, os, signal
from cosine_terminal.interrupts import run_until_stopped

async def work(stop):
    os.kill(os.getpid(), signal.FIRST)
    await stop.wait()
    print("asked to stop", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()

run_until_stopped(work)
"""
"""A node that never stops."""


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
def test_an_interrupt_after_a_signal_leaves_at_once(first: str) -> None:
    program = STUBBORN.replace("FIRST", first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "asked to stop\n", "")


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_that_ends_a_program_leaves_a_terminal_with_its_cursor(number: signal.Signals) -> None:
    program = (
        "import os, signal, sys; from cosine_terminal.interrupts import show_cursor_on_signals;"
        f"show_cursor_on_signals(); os.write(2, b'hidden'); os.kill(os.getpid(), {int(number)}); signal.pause()"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert process.wait(60) == -number
    assert os.read(ours, 1000).startswith(b"hidden\x1b[?25h")
    os.close(ours)


def test_signals_are_handled_afterwards_as_before() -> None:
    async def work(_: asyncio.Event) -> None:
        pass

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run_until_stopped(work)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("bytes_wanted", "level"), [(1, logging.DEBUG), (0, logging.ERROR)])
def test_a_peer_that_hangs_up_is_no_error(caplog: pytest.LogCaptureFixture, bytes_wanted: int, level: int) -> None:
    """asyncio reports a callback of a listening socket that raises, provoked as the network library does."""

    async def read(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readexactly(bytes_wanted)
        raise ValueError("a fault of ours")

    async def hang_up() -> None:
        asyncio.get_running_loop().set_exception_handler(log_unhandled_error)
        async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.close()
            await writer.wait_closed()
            for _ in range(1000):
                if not caplog.records:
                    await asyncio.sleep(0.01)

    with caplog.at_level(logging.DEBUG, logger="cosine_terminal"):
        asyncio.run(hang_up())
    assert [record.levelno for record in caplog.records] == [level]
