"""`cosine-node serve` as a process among real nodes: OpenAI's client gets exactly the target's own text."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from openai import AuthenticationError, OpenAI

from tests.e2e.conftest import Swarm
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy, target_tokenizer

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

KEY: Final = "sesame"
TOKENS: Final = 24
PROMPT: Final = "The old lighthouse keeper opened the door and"
QUESTION: Final[list[Any]] = [{"role": "user", "content": "What is 3 plus 4?"}]


@pytest.fixture(scope="module")
def gateway(swarm: Swarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("gateway")
    node = Node.start("gateway", ("serve", "--port", "0", *swarm.peers), folder, COSINE_API_KEY=KEY)
    try:
        yield node.wait_ready()
    finally:
        node.close()


@pytest.fixture(scope="module")
def client(gateway: Node) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.ready['url']}/v1", api_key=KEY, max_retries=0, timeout=60) as openai:
        yield openai


def own_text(prompt: str) -> str:
    """What the target alone writes after a prompt, greedily."""
    before = encoded(prompt)
    whole: str = target_tokenizer().decode([*before, *greedy(before, TOKENS)])
    return whole.removeprefix(target_tokenizer().decode(list(before)))


def test_a_completion_is_the_targets_own_text(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "zoo:target", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
    done = client.completions.create(**options)
    assert done.choices[0].text == own_text(PROMPT)
    pieces = list(client.completions.create(**options, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == done.choices[0].text
    assert {piece.system_fingerprint for piece in pieces} == {done.system_fingerprint}


@pytest.mark.thorough
def test_a_chat_is_what_the_command_writes(client: OpenAI, swarm: Swarm) -> None:
    done = client.chat.completions.create(
        model="cosine", messages=QUESTION, max_tokens=TOKENS, temperature=0.8, seed=5
    )
    options = ("--chat", "--max-new-tokens", str(TOKENS), "--temperature", "0.8", "--seed", "5", "--json")
    written = json.loads(run("generate", QUESTION[0]["content"], *options, *swarm.peers).stdout)
    assert done.choices[0].message.content == written["text"]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (written["prompt_tokens"], written["tokens"])


def test_keys_health_and_metrics(client: OpenAI, gateway: Node) -> None:
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(AuthenticationError):
        stranger.models.list()
    assert [model.id for model in client.models.list()] == ["zoo:target", "cosine"]
    with urlopen(f"{gateway.ready['url']}/health") as health:
        assert json.load(health) == {"status": "ok", "verifiers": 1}
    with urlopen(f"{gateway.ready['url']}/metrics") as metrics:
        assert b"cosine:spec_decode_num_draft_tokens_total" in metrics.read()


@pytest.mark.thorough
def test_sigterm_finishes_the_stream_and_exits_0(swarm: Swarm, tmp_path: Path) -> None:
    node = Node.start("gateway", ("serve", "--port", "0", *swarm.peers), tmp_path).wait_ready()
    try:
        with OpenAI(base_url=f"{node.ready['url']}/v1", api_key="none", max_retries=0) as openai:
            stream = openai.completions.create(
                model="zoo:target", prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True
            )
            pieces = [next(stream).choices[0].text]
            node.process.send_signal(signal.SIGTERM)
            pieces += [piece.choices[0].text for piece in stream]
        assert "".join(pieces) == own_text(PROMPT)
        assert node.process.wait(timeout=30) == 0
        assert node.events.get(timeout=10) == {"event": "stopped"}
        lines = [json.loads(line) for line in node.log.read_text().splitlines()]
        (told,) = [line for line in lines if line["event"] == "request"]
        # The log of the client inside names the request as the event does.
        assert {line["request"] for line in lines if "request" in line} == set(told["requests"])
        assert (told["event"], told["path"], told["status"]) == ("request", "/v1/completions", 200)
        assert told["completion_tokens"] == TOKENS
    finally:
        node.close()
