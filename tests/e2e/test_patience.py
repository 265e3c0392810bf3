"""Nodes and clients wait for a bootstrap node that is not there yet, and say so."""

import subprocess
from pathlib import Path
from typing import Final

import psutil
import pytest

from cosine_p2p.storage.identity_file import load_identity
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import COMMAND, DAEMON, daemons_of, free_port, run, starting
from tests.waiting import wait_until

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
WAITING: Final = "No node of the network answers yet"


@pytest.fixture(autouse=True)
def _more_than_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the last process may start after the first one's patience."""
    monkeypatch.setenv("COSINE_JOIN_PATIENCE", "240")


def test_a_bootstrap_node_may_be_started_last(tmp_path: Path) -> None:
    key, host = tmp_path / "boot.key", f"/ip4/127.0.0.1/tcp/{free_port()}"
    peers = ("--initial-peers", f"{host}/p2p/{load_identity(key).peer_id}")
    log = tmp_path / "status.log"
    with (
        starting(tmp_path) as start,
        starting(tmp_path, host=host) as start_there,
        log.open("wb") as errors,
        subprocess.Popen((*COMMAND, "status", *peers), stdout=subprocess.DEVNULL, stderr=errors) as status,
    ):
        verifier = start(
            "verifier", "join", "--role", "verifier", "--model", "zoo:target", "--threads", "1", *peers
        )
        gateway = start("gateway", "serve", "--port", "0", *peers)
        try:
            wait_until(lambda: WAITING in log.read_text(), within_s=120)
            for node in (verifier, gateway):
                node.wait_said(WAITING)
            boot = start_there("boot", "bootstrap", "--identity", str(key))
            for node in (boot, verifier, gateway):
                node.wait_ready()
            # It sees the verifier only if that joined first; either result is an answer.
            assert status.wait(60) == 0 or "Error: No node in the network" in log.read_text()
        finally:
            status.kill()


def test_a_client_that_knows_one_node_alone_waits_for_its_daemon(swarm: Swarm) -> None:
    [daemon] = daemons_of(swarm.boot.process.pid)
    psutil.Process(daemon).kill()
    done = run("generate", PROMPT, "--max-new-tokens", "4", *swarm.peers)
    assert done.returncode == 0, done.stderr
    assert swarm.boot.process.poll() is None
    assert [psutil.Process(pid).name() for pid in daemons_of(swarm.boot.process.pid)] == [DAEMON]
