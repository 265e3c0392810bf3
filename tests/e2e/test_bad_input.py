"""Mistakes of people: each gives one plain sentence on stderr and exit code 1 or 2, never a traceback."""

import shutil
import socket
from pathlib import Path
from typing import Final

import pytest

from cosine_node import zoo
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import run

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

NOBODY: Final = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def sentence_of(*arguments: str, code: int, stdin: str = "", **environment: str) -> str:
    """The one sentence a command ends with."""
    done = run(*arguments, stdin=stdin, environment=environment)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    *stages, sentence = done.stderr.splitlines()
    assert sentence.startswith("Error: ") and all(stage.endswith(" ...") for stage in stages), done.stderr
    return sentence


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("zoo:nobody", "draft-math"),
        *(
            pytest.param(model, part, marks=pytest.mark.soak)
            for model, part in (("/no/such/model", "/no/such/model"), ("nobody/no-such-model", "no-such-model"))
        ),
    ],
)
def test_an_unknown_model(model: str, part: str, tmp_path: Path) -> None:
    arguments = ("join", "--role", "verifier", "--model", model, "--identity", str(tmp_path / "key"))
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert part in done.stderr.splitlines()[-1]


def test_an_empty_prompt() -> None:
    assert "prompt is empty" in sentence_of("generate", "", "--initial-peers", NOBODY, code=2)
    assert "prompt is empty" in sentence_of("generate", "-", "--initial-peers", NOBODY, code=2)


def test_a_prompt_longer_than_the_context(swarm: Swarm) -> None:
    sentence = sentence_of("generate", "-", *swarm.peers, stdin="word " * 3000, code=2)
    assert "3001 tokens > 1023" in sentence and "shorten" in sentence


@pytest.mark.thorough
def test_a_temperature_below_zero(swarm: Swarm) -> None:
    assert "temperature" in sentence_of("generate", "hi", "--temperature", "-1", *swarm.peers, code=2)


@pytest.mark.thorough
def test_an_address_that_is_none() -> None:
    assert "'nonsense'" in sentence_of("generate", "hi", "--initial-peers", "nonsense", code=2)


@pytest.mark.thorough
def test_no_peers() -> None:
    assert "--initial-peers" in sentence_of("generate", "hi", code=2)


@pytest.mark.thorough
def test_a_peer_that_does_not_answer() -> None:
    arguments = ("generate", "hi", "--initial-peers", NOBODY)
    assert NOBODY in sentence_of(*arguments, code=1, COSINE_JOIN_PATIENCE="1")


@pytest.mark.thorough
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        maddr = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        place = ("--host-maddr", maddr, "--identity", str(tmp_path / "key"))
        assert "in use" in sentence_of("bootstrap", *place, code=2)


@pytest.mark.thorough
def test_an_identity_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"no key")
    assert str(file) in sentence_of("bootstrap", "--identity", str(file), code=2)
    assert str(tmp_path) in sentence_of("bootstrap", "--identity", str(tmp_path), code=2)


@pytest.mark.thorough
def test_a_target_nobody_serves(swarm: Swarm) -> None:
    sentence = sentence_of("generate", "hi", "--target", "nobody/model", *swarm.peers, code=1)
    assert "nobody/model" in sentence and "cosine-node join" in sentence


@pytest.mark.thorough
def test_a_target_folder_with_another_tokenizer(swarm: Swarm, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(zoo.folder("target"), folder)
    assert run("generate", "hi", "--max-new-tokens", "2", "--target", str(folder), *swarm.peers).returncode == 0
    with (folder / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert str(folder) in sentence_of("generate", "hi", "--target", str(folder), *swarm.peers, code=1)
