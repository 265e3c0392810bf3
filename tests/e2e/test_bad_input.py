"""User errors: one sentence on stderr and exit code 1 or 2, never a traceback."""

import shutil
import socket
from pathlib import Path
from typing import Final

import pytest

from cosine_engine import zoo
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import run

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NOBODY: Final = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"


def sentence_of(*arguments: str, code: int, stdin: str = "", **environment: str) -> str:
    done = run(*arguments, stdin=stdin, environment=environment)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert "Traceback" not in done.stderr
    *stages, sentence = done.stderr.splitlines()
    assert sentence.startswith("Error: ") and all(stage.endswith(" ...") for stage in stages), done.stderr
    return sentence


def test_a_prompt_longer_than_the_context(swarm: Swarm) -> None:
    sentence = sentence_of("generate", "-", *swarm.peers, stdin="word " * 3000, code=2)
    assert "3001 tokens > 1023" in sentence and "shorten" in sentence


def test_what_is_not_there(swarm: Swarm) -> None:
    absent = ("generate", "hi", "--initial-peers", NOBODY)
    assert NOBODY in sentence_of(*absent, code=1, COSINE_JOIN_PATIENCE="1")
    sentence = sentence_of("generate", "hi", "--target", "nobody/model", *swarm.peers, code=1)
    assert "nobody/model" in sentence and "cosine-node verify" in sentence


def test_a_port_in_use_a_model_and_an_identity_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"no key")
    assert str(file) in sentence_of("bootstrap", "--identity", str(file), code=2)
    key = ("--identity", str(tmp_path / "new"))
    assert "draft-math" in sentence_of("join", "--role", "verifier", "--model", "zoo:nobody", *key, code=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        maddr = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        assert "in use" in sentence_of("bootstrap", "--host-maddr", maddr, *key, code=2)


def test_a_target_folder_with_another_tokenizer(swarm: Swarm, tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(zoo.folder("target"), folder)
    assert run("generate", "hi", "--max-new-tokens", "2", "--target", str(folder), *swarm.peers).returncode == 0
    with (folder / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert str(folder) in sentence_of("generate", "hi", "--target", str(folder), *swarm.peers, code=1)
