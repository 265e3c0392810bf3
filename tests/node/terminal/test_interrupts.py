"""Ctrl-C ends `generate` and `status` wherever they are: exit code 130, and no word of what was cut off."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cosine_p2p.samples import identity_of

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(120)]

PROGRAM: Final = """
import asyncio, os, signal, subprocess, sys
from cosine_node.terminal.interrupts import leave_on_interrupt, run_interruptibly

async def work():
    # It shares our stdout: whoever reads that to its end waits for the child, too.
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
    """An address at which somebody takes the connection and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/p2p/{identity_of(1).peer_id}"


def interrupted(arguments: list[str], folder: Path, *, after: str, transport: str) -> tuple[int, list[str]]:
    """Exit code and lines on stderr of a command that gets SIGINT once it has told a stage."""
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


@pytest.mark.parametrize("command", [["generate", "hi"], ["status"], ["status", "--watch"]], ids=" ".join)
@pytest.mark.parametrize("transport", ["light", "full"])
@pytest.mark.parametrize("after", ["Loading", "Looking for peers"])
def test_it_leaves_while_it_loads_and_while_it_looks_for_peers(
    silent_peer: str, tmp_path: Path, command: list[str], transport: str, after: str
) -> None:
    arguments = [*command, "--initial-peers", silent_peer]
    code, lines = interrupted(arguments, tmp_path, after=after, transport=transport)
    assert code == 130
    assert lines[-1] == "Interrupted."
    assert all(line.endswith(" ...") for line in lines[:-1]), lines


@pytest.mark.parametrize("stubborn", ["raise", "pass"])
def test_children_go_too_whether_the_work_lets_itself_be_cancelled_or_not(stubborn: str) -> None:
    program = PROGRAM.replace("STUBBORN", stubborn)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")
