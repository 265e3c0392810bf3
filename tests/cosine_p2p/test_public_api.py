"""The names and fields that programs outside the repository use."""

import dataclasses
import inspect

import pytest

import cosine_p2p
from cosine_p2p import AsyncClient, Chunk, Client, DrafterReport, Generation, VerifierReport
from cosine_protocol.errors import UsageError

JSON_FIELDS = [
    "text",
    "token_ids",
    "prompt_tokens",
    "tokens",
    "finish_reason",
    "seconds",
    "time_to_first_token_s",
    "strategy",
    "seed",
    "rounds",
    "drafted",
    "accepted",
    "drafters",
    "verifiers",
    "receipts",
    "audit",
]


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_what_is_public() -> None:
    expected = ["AsyncClient", "Chunk", "Client", "DrafterReport", "Generation", "VerifierReport"]
    assert sorted(cosine_p2p.__all__) == expected
    assert all(hasattr(cosine_p2p, name) for name in expected)


def test_fields_of_results() -> None:
    assert set(JSON_FIELDS) <= set(names(Generation))
    assert names(Chunk) == ["text", "token_ids", "source"]
    assert names(DrafterReport) == ["peer_id", "domain", "drafted", "accepted", "rtt_ms"]
    assert names(VerifierReport) == ["peer_id", "rtt_ms", "tokens"]


def test_options_of_a_client() -> None:
    for kind in (Client, AsyncClient):
        assert "initial_peers" in inspect.signature(kind).parameters
    AsyncClient(initial_peers=["/ip4/127.0.0.1/tcp/1"], target="zoo:target", strategy="cosine")


@pytest.mark.parametrize(
    "option",
    [{"strategy": "magic"}, {"max_drafters": -1}, {"timeout_s": 0.0}],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_options_that_mean_nothing_are_refused(kind: type, option: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        kind(initial_peers=["/ip4/127.0.0.1/tcp/1"], **option)


def test_options_of_a_generation() -> None:
    parameters = inspect.signature(AsyncClient.start).parameters
    assert {"max_new_tokens", "temperature", "top_p", "top_k", "seed", "stop"} <= set(parameters)
