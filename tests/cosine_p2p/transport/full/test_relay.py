"""A relay's daemon is started again until it lets enough through, and never for ever."""

import asyncio
import logging
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from cosine_p2p.transport.full.relay import CIRCUIT_BYTES, LAUNCH, MAX_STARTS, SLACK_FILE, SLACK_NS, start_relay
from cosine_protocol.errors import PeerLost

DEFAULT_BYTES = 128 << 10


@dataclass(slots=True)
class Starts:
    """Daemons that grant the given bytes, one after the other; the last one's for ever."""

    granted: list[int | None]
    open: list[int] = field(default_factory=list)
    made: int = 0

    async def start(self) -> "Daemon":
        self.made += 1
        self.open.append(self.made)
        return Daemon(self, self.made)

    async def ask(self, daemon: "Daemon") -> int | None:
        return self.granted[min(daemon.number, len(self.granted)) - 1]


@dataclass(slots=True)
class Daemon:
    starts: Starts
    number: int

    async def close(self) -> None:
        self.starts.open.remove(self.number)


def started(*granted: int | None) -> Starts:
    starts = Starts(list(granted))
    asyncio.run(start_relay(cast(Any, starts.start), cast(Any, starts.ask)))
    return starts


def test_only_the_first_that_grants_enough_stays(caplog: pytest.LogCaptureFixture) -> None:
    assert started(DEFAULT_BYTES, DEFAULT_BYTES, CIRCUIT_BYTES).open == [3]
    assert not caplog.records


@pytest.mark.parametrize("granted", [(DEFAULT_BYTES,), (None,)], ids=["too little", "unknown"])
def test_one_stays_in_the_end_with_a_warning(
    granted: tuple[int | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    starts = started(*granted)
    assert starts.made == (1 if granted == (None,) else MAX_STARTS)
    assert starts.open == [starts.made]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_none_stays_when_asking_is_given_up() -> None:
    starts = Starts([None])

    async def ask(daemon: Daemon) -> int | None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(start_relay(cast(Any, starts.start), cast(Any, ask)))
    assert starts.open == []


def test_a_daemon_that_does_not_start_is_not_tried_again() -> None:
    tried = 0

    async def start() -> Daemon:
        nonlocal tried
        tried += 1
        raise PeerLost("12D3", "no answer from there")

    with pytest.raises(PeerLost, match="no answer from there"):
        asyncio.run(start_relay(cast(Any, start), cast(Any, Starts([]).ask)))
    assert tried == 1


@pytest.mark.skipif(not Path(SLACK_FILE).exists(), reason="a file of Linux")
def test_its_program_gets_one_processor_and_late_timers() -> None:
    assert launched(LAUNCH, f'cat {SLACK_FILE}; echo "$GOMAXPROCS"') == f"{SLACK_NS}\n1\n"


def test_its_program_is_started_where_timers_cannot_be_late() -> None:
    assert launched(LAUNCH.replace(SLACK_FILE, "/nowhere/file"), "echo started") == "started\n"


def launched(launch: str, script: str) -> str:
    """What a shell that is launched as the daemon says."""
    command = (sys.executable, "-ISc", launch, "/bin/sh", "-c", script)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
