"""A drafter whose words llama.cpp's server writes: they are accepted, and its faults cost drafts alone."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from cosine_engine import zoo
from cosine_engine.gguf.writing import write_gguf
from cosine_p2p import Client
from cosine_p2p.request.results import Generation
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import Node, free_port, run
from tests.e2e.reference import PROMPT, encoded, greedy
from tests.llama_server import LlamaServer

pytestmark = [
    pytest.mark.network,
    pytest.mark.thorough,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs llama.cpp (xllamacpp)"),
]

NETWORK: Final = "text-server"
ONE: Final = ("--threads", "1", "--network", NETWORK)
NEW_TOKENS: Final = 48
SLOW: Final = "60/6@0"
"""Drafts pay surely at a verifier of this pace."""


def joining(port: int, *more: str) -> tuple[str, ...]:
    return ("join", "--role", "drafter", "--model", f"openai:http://127.0.0.1:{port}/v1", *more)


def test_one_that_is_not_there_is_refused_in_a_sentence() -> None:
    port = free_port()
    done = run(*joining(port, *ONE, "--host-maddr", "/ip4/127.0.0.1/tcp/0"))
    assert done.returncode == 2
    said = done.stderr.splitlines()[-1]
    assert f"Error: http://127.0.0.1:{port}/v1 cannot draft: it does not answer" in said
    assert said.endswith("; start the server, or correct --model.")


def test_a_server_drafts_and_its_faults_cost_no_text(swarm: Swarm, tmp_path: Path) -> None:
    file, port = tmp_path / "target.gguf", free_port()
    write_gguf(zoo.folder("target"), file, weights="Q8_0")
    server = LlamaServer(file, port=port)
    verifier = Node.start(
        "slow",
        ("join", "--role", "verifier", "--model", "zoo:target", "--dtype", "float32", *ONE, "--emulate", SLOW),
        swarm.folder,
    )
    peers = (*ONE, "--initial-peers", verifier.wait_ready().maddr)
    drafter = Node.start("writing", joining(port, *peers), swarm.folder).wait_ready()
    try:
        with Client([verifier.maddr], target="zoo:target", network=NETWORK, memory=False) as client:

            def generate() -> Generation:
                done = client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
                assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
                return done

            done = generate()
            assert [report.domain for report in done.swarm.drafters] == [file.name]
            assert done.swarm.accepted > NEW_TOKENS // 3
            server.close()
            assert generate().swarm.accepted == 0
            drafter.wait_said("does not draft now")
            server = LlamaServer(file, port=port)
            until_s = time.monotonic() + 60
            while not generate().swarm.accepted:
                assert time.monotonic() < until_s
            assert drafter.stop() == 0
    finally:
        server.close()
        drafter.close()
        verifier.close()
