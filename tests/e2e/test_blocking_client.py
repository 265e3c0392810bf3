"""Programs with a client print nothing else, however they end."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import Swarm

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

SCRIPT: Final = Path(__file__).with_name("blocking_client.py")
IS_LIGHT: Final = pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p")
TRANSPORTS: Final = ["full", pytest.param("light", marks=IS_LIGHT)]
EITHER: Final = ["full", pytest.param("light", marks=[IS_LIGHT, pytest.mark.soak])]
"""Transports of tests in which the way to end matters more."""


def said(swarm: Swarm, do: str, transport: str) -> list[dict[str, Any]]:
    """The lines of the program, which must succeed and print nothing else."""
    task = {"do": do, "peers": [swarm.boot.maddr], "transport": transport}
    done = subprocess.run(
        (sys.executable, SCRIPT, json.dumps(task)), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_end_without_a_trace(swarm: Swarm, transport: str) -> None:
    assert [list(line) for line in said(swarm, "leave a stream open", transport)] == [["text"]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_frees_the_verifier_and_leaves_the_client_usable(swarm: Swarm, transport: str) -> None:
    interrupted, freed, generated = said(swarm, "interrupt stream", transport)
    assert (interrupted, freed, list(generated)) == ({"interrupted": True}, {"requests": 0}, ["text"])


@pytest.mark.parametrize("transport", EITHER)
def test_ctrl_c_ends_an_asyncio_program_as_quietly(swarm: Swarm, transport: str) -> None:
    assert said(swarm, "interrupt asyncio", transport) == [{"interrupted": True}]


@pytest.mark.parametrize("transport", EITHER)
def test_a_forked_child_is_told_and_harms_nobody(swarm: Swarm, transport: str) -> None:
    before, told, after = said(swarm, "fork", transport)
    assert before == after
    assert "make a client after the fork" in told["error"]
