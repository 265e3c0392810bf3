"""A target whose emoji are runs of byte tokens: its text is whole, streamed or not, and stops at emoji."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from openai import OpenAI

from cosine_p2p import Client, Generation
from tests.cosine_p2p.tokenizer_kinds import codec_of
from tests.e2e.emoji_model import KIND, write_model
from tests.e2e.nodes import Node, run

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "emoji"
PROMPT: Final = "ok ok"
SEEDS: Final = (1, 2, 3)
TOKENS: Final = 100
STOP: Final = "👍🙂👍"


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """A verifier of its own network, and the folder of its model."""
    folder = tmp_path_factory.mktemp("byte-fallback")
    model = str(write_model(folder / "model"))
    place = ("--network", NETWORK, "--threads", "1", "--dtype", "float32")
    node = Node.start("emoji", ("join", "--role", "verifier", "--model", model, *place), folder)
    try:
        yield node.wait_ready(), model
    finally:
        node.close()


@pytest.fixture(scope="module")
def peers(verifier: tuple[Node, str]) -> tuple[str, ...]:
    node, model = verifier
    return "--initial-peers", node.maddr, "--network", NETWORK, "--target", model


@pytest.fixture(scope="module")
def client(verifier: tuple[Node, str]) -> Iterator[Client]:
    node, model = verifier
    with Client([node.maddr], network=NETWORK, target=model, temperature=1.0, max_new_tokens=TOKENS) as client:
        yield client


@pytest.fixture(scope="module")
def openai(peers: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    gateway = Node.start("emoji-gateway", ("serve", "--port", "0", *peers), tmp_path_factory.mktemp("gateway"))
    try:
        url = f"{gateway.wait_ready().ready['url']}/v1"
        with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as openai:
            yield openai
    finally:
        gateway.close()


def text_of(generation: Generation) -> str:
    """The text of the tokens, decoded at once."""
    codec = codec_of(KIND)
    prompt = codec.encode(PROMPT)
    return codec.decode([*prompt, *generation.token_ids]).removeprefix(codec.decode(prompt))


def streamed(client: Client, **options: Any) -> tuple[list[str], Generation]:
    """The texts of the chunks, and the result."""
    chunks, texts = client.stream(PROMPT, **options), []
    while True:
        try:
            texts.append(next(chunks).text)
        except StopIteration as end:
            return texts, end.value


def test_python_gives_the_decoded_text_and_stops_at_emoji(client: Client) -> None:
    found, wholes = 0, []
    for seed in SEEDS:
        generation = client.generate(PROMPT, seed=seed)
        assert generation.text == text_of(generation)
        wholes.append(generation.text)
        texts, result = streamed(client, seed=seed, stop=STOP)
        assert "".join(texts) == result.text == generation.text.partition(STOP)[0]
        assert (result.finish_reason == "stop") is (STOP in generation.text)
        found += STOP in generation.text
    assert found
    assert any("🙂🙂" in whole for whole in wholes) and any("\ufffd" in whole for whole in wholes)


def test_the_command_gives_the_same_text_and_stops_there_too(client: Client, peers: tuple[str, ...]) -> None:
    seed = next(seed for seed in SEEDS if STOP in client.generate(PROMPT, seed=seed).text)
    text = client.generate(PROMPT, seed=seed).text
    options = ("--temperature", "1", "--seed", str(seed), "--max-new-tokens", str(TOKENS), *peers)
    written = run("generate", PROMPT, *options)
    assert written.returncode == 0, written.stderr
    assert written.stdout == text + "\n"
    stopped = run("generate", PROMPT, "--stop", STOP, "--json", *options)
    assert json.loads(stopped.stdout)["text"] == text.partition(STOP)[0]


@pytest.mark.parametrize("stop", [pytest.param(None, marks=pytest.mark.soak), STOP])
def test_the_gateway_gives_the_same_text_streamed_or_not(client: Client, openai: OpenAI, stop: str | None) -> None:
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    for seed in SEEDS:
        options: dict[str, Any] = {"model": "cosine", "max_tokens": TOKENS, "temperature": 1, "seed": seed}
        done = openai.completions.create(prompt=PROMPT, stop=stop, **options)
        pieces = openai.completions.create(prompt=PROMPT, stop=stop, stream=True, **options)
        said = openai.chat.completions.create(messages=messages, stop=stop, **options)
        chunks = openai.chat.completions.create(messages=messages, stop=stop, stream=True, **options)
        expected = done.choices[0].text
        assert "".join(piece.choices[0].text for piece in pieces) == expected
        assert said.choices[0].message.content == expected
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        whole = client.generate(PROMPT, seed=seed).text
        assert expected == (whole if stop is None else whole.partition(stop)[0])
        assert done.choices[0].finish_reason == ("stop" if stop and stop in whole else "length")
