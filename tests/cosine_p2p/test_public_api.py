"""The names and fields that programs outside the repository use."""

import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import cosine_p2p
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p import (
    AsyncClient,
    Chunk,
    Client,
    DrafterReport,
    Generation,
    GenerationOptions,
    Origin,
    VerifierReport,
)
from cosine_protocol.errors import UsageError

JSON_FIELDS = [
    "text", "token_ids", "prompt_tokens", "tokens", "finish_reason", "seconds", "time_to_first_token_s",
    "strategy", "seed", "rounds", "drafted", "accepted", "origins", "drafters", "verifiers", "generation_config",
    "audit", "logprobs", "prompt_logprobs",
    "content", "reasoning", "reasoning_tokens", "tool_calls",
]  # fmt: skip


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


PUBLIC = {
    "AppliedConfig", "AsyncClient", "Chunk", "Client", "ClientOptions", "CosineError", "DrafterReport",
    "Generation", "GenerationFailed", "GenerationOptions", "GenerationTimedOut", "Observer", "Origin",
    "PeerLost", "Progress", "Prompt", "PromptRefused", "PromptTooLong", "Run", "UsageError", "VerifierReport",
    "Chat", "NamedTool", "ToolCall", "ToolChoice", "LikelyToken", "NamedToken",
    "TextTokenizer", "TokenLogprob", "__version__", "load_tokenizer", "told_origins",
}  # fmt: skip


def test_what_is_public() -> None:
    assert set(cosine_p2p.__all__) == PUBLIC
    assert all(hasattr(cosine_p2p, name) for name in PUBLIC)


def test_fields_of_results() -> None:
    assert set(JSON_FIELDS) <= set(names(Generation))
    assert names(Chunk) == ["text", "token_ids", "source", "is_copied", "parts", "logprobs", "origins"]
    assert names(Origin) == ["source", "is_copied", "domain", "tokens"]
    assert names(DrafterReport) == ["peer_id", "domain", "drafted", "accepted", "rtt_ms"]
    assert names(VerifierReport) == ["peer_id", "rtt_ms", "tokens", "drafts"]


@pytest.mark.parametrize(
    "method",
    [AsyncClient.generate, AsyncClient.stream, AsyncClient.start, Client.generate, Client.submit, Client.stream],
)
def test_help_lists_the_options_of_a_generation(method: Callable[..., object]) -> None:
    parameters = inspect.signature(method).parameters
    assert list(parameters)[:2] == ["self", "prompt"]
    named = [name for name in parameters if name not in ("otherwise", "cache_scope")]
    assert named[2:] == list(GenerationOptions.__annotations__)
    assert (parameters["timeout_s"].default, parameters["seed"].default) == (600.0, None)


def test_every_name_is_there_before_it_is_used_and_no_other_is() -> None:
    code = (
        "import cosine_p2p, sys\n"
        "assert not {'cosine_p2p.client', 'tokenizers'} & sys.modules.keys()\n"
        "assert set(cosine_p2p.__all__) <= set(dir(cosine_p2p))\n"
        "from cosine_p2p import *\n"
        "assert AsyncClient.__module__ == 'cosine_p2p.client' and Run and Prompt and UsageError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        getattr(cosine_p2p, "Client" + "s")


@pytest.mark.parametrize(
    ("prompt", "options", "sentence"),
    [
        ("a", {"max_new_tokens": 1.5}, "max_new_tokens must be a whole number of at least 1, not 1.5."),
        ("a", {"top_p": 1.1}, "top_p must lie between 1e-09 and 1, not 1.1."),
        ("a", {"max_tokens": 10}, "There is no option 'max_tokens'; there is max_new_tokens."),
        ("a", {"trust": "12D3KooW"}, "trust must be a list of peer ids, not '12D3KooW'; write ['12D3KooW']."),
        ("a", {"verifier": ["12D3KooW"]}, "verifier must be a peer id, not ['12D3KooW']; give one, not several."),
        ("a", {"network": "main"}, "There is no option 'network' of a single generation; give it to the client."),
        (b"a", {}, "A prompt is text, not bytes; decode it first, as in prompt.decode()."),
        (
            ["a", "b"],
            {},
            "A call takes one prompt, not several; call it for each, or run them at the same time with "
            "`Client.submit` or `asyncio.gather`.",
        ),
        ({"role": "user", "content": "a"}, {}, "A chat is a list of messages; write [message] for a single one."),
        ("", {}, "The prompt is empty; give at least one character."),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(prompt: Any, options: dict[str, Any], sentence: str) -> None:
    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            await (await swarm.client()).generate(prompt, **options)

    with pytest.raises(UsageError) as refused:
        run_virtual(run())
    assert str(refused.value) == sentence


def test_a_closed_client_says_so() -> None:
    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            client = await swarm.client()
            await client.__aexit__(None, None, None)
            await client.generate("a")

    with pytest.raises(UsageError, match="The client is closed; make another one"):
        run_virtual(run())
