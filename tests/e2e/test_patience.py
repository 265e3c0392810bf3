"""Nodes and clients wait for a bootstrap node that is not there yet, and say so."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest

from cosine_p2p.storage.identity_file import load_identity
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import COMMAND, DAEMON, Node, close_all, daemons_of, free_port, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
WAITING: Final = "No node of the network answers yet"


@pytest.fixture(autouse=True)
def _more_than_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the last process may start after the first one's patience."""
    monkeypatch.setenv("COSINE_JOIN_PATIENCE", "240")


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    started: list[Node] = []
    try:
        yield started
    finally:
        close_all(started)


def bootstrap_place(folder: Path) -> tuple[tuple[str, ...], str]:
    """The arguments of a bootstrap node, and the address that it will have."""
    key, host = folder / "boot.key", f"/ip4/127.0.0.1/tcp/{free_port()}"
    return ("bootstrap", "--identity", str(key)), f"{host}/p2p/{load_identity(key).peer_id}"


@contextmanager
def waiting(folder: Path, *commands: Sequence[str]) -> Iterator[list[tuple["subprocess.Popen[bytes]", Path]]]:
    """Commands that have said that nobody answers, and their logs."""
    with ExitStack() as stack:
        found = []
        for number, command in enumerate(commands):
            log = folder / f"command-{number}.log"
            errors = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
            stack.callback(process.wait)
            stack.callback(process.kill)
            found.append((process, log))
        wait_until(lambda: all(WAITING in log.read_text() for _, log in found), within_s=120)
        yield found


def test_a_bootstrap_node_may_be_started_last(tmp_path: Path, nodes: list[Node]) -> None:
    arguments, maddr = bootstrap_place(tmp_path)
    peers = ("--initial-peers", maddr)
    join = ("join", "--role", "verifier", "--model", "zoo:target", "--threads", "1", *peers)
    nodes.append(Node.start("verifier", join, tmp_path))
    nodes.append(Node.start("gateway", ("serve", "--port", "0", *peers), tmp_path))
    with waiting(tmp_path, (*COMMAND, "status", *peers)) as [(status, log)]:
        for node in nodes:
            node.wait_said(WAITING)
        nodes.append(Node.start("boot", arguments, tmp_path, host=maddr.partition("/p2p/")[0]))
        for node in (nodes[2], nodes[0], nodes[1]):
            node.wait_ready()
        status.communicate(timeout=60)
        # It sees the verifier only if that joined first; either result is an answer.
        assert status.returncode == 0 or "Error: No node in the network" in log.read_text()


def test_a_client_that_knows_one_node_alone_waits_for_its_daemon(swarm: Swarm) -> None:
    [daemon] = daemons_of(swarm.boot.process.pid)
    psutil.Process(daemon).kill()
    done = run("generate", PROMPT, "--max-new-tokens", "4", *swarm.peers)
    assert done.returncode == 0, done.stderr
    assert swarm.boot.process.poll() is None
    assert [psutil.Process(pid).name() for pid in daemons_of(swarm.boot.process.pid)] == [DAEMON]
