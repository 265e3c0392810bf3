"""The light install of the wheel in a clean environment generates text with a swarm."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.packaging.conftest import ROOT, Built, Composed

# pip builds what has no wheel for a minute; `test_wheel` looks into the wheel in every check.
pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

PROMPT: Final = "def quicksort(values):"
UNRESOLVED: Final = ("No matching distribution found", "Could not find a version", "ResolutionImpossible", "gmp.h")


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    done = subprocess.run(
        (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *constraints, f"{built.wheel}[light]"),
        capture_output=True,
        text=True,
    )
    if any(sign in done.stderr for sign in UNRESOLVED):
        pytest.skip(f"pip cannot install the dependencies here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder


def clean_environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_STATE_HOME": str(home),
    }


@pytest.fixture(scope="module")
def ask(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    home = tmp_path_factory.mktemp("home")

    def run(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            (str(installed / "bin" / "cosine"), *arguments, "--json"),
            env=clean_environment(home),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        parsed: dict[str, Any] = json.loads(done.stdout)
        return parsed

    return run


def test_the_text_is_the_one_everybody_gets(ask: Callable[..., dict[str, Any]], composed: Composed) -> None:
    peers = ("--initial-peers", composed.address, "--max-new-tokens", "24", "--temperature", "0.8", "--seed", "7")
    here = ask("generate", PROMPT, *peers)
    there = subprocess.run(
        (sys.executable, "-m", "cosine_node", "generate", PROMPT, *peers, "--strategy", "plain", "--json"),
        env=composed.environment("client"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert there.returncode == 0, there.stderr
    assert here["token_ids"] == json.loads(there.stdout)["token_ids"]


def test_status_works_in_it(ask: Callable[..., dict[str, Any]], composed: Composed) -> None:
    peers = ("--initial-peers", composed.address)
    assert {node["role"] for node in ask("status", *peers)["nodes"]} == {"verifier", "drafter"}


def test_it_holds_no_node(installed: Path) -> None:
    done = subprocess.run((str(installed / "bin" / "python"), "-c", "import cosine_node"), capture_output=True)
    assert done.returncode == 1 and not (installed / "bin" / "cosine-node").exists()
