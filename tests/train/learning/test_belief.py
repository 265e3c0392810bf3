"""The choice of clients: the shipped weights decide by their own guesses, and all new clients count as one."""

from functools import cache
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.observer import NO_GUESS
from cosine_protocol.request import Sampling
from cosine_train.learning.belief import LEAST_TOKENS, Belief
from cosine_train.learning.stream_store import MOST_OF_ONE_CLIENT
from cosine_train.learning.streams import VerifiedStream

VOCAB_TOKENS = 64
SHIPPED = ScriptedEngine(vocab_tokens=VOCAB_TOKENS)
PROMPT = (1, 2, 3)


@cache
def text_of(client: str, share: float, *, tokens: int = LEAST_TOKENS) -> VerifiedStream:
    """Return a text of which the shipped weights guess a share; the rest is random."""
    rng, path = Random(f"{client} 0"), list(PROMPT)
    for _ in range(tokens):
        logits = SHIPPED.logits_after(path)
        own = max(range(VOCAB_TOKENS), key=logits.__getitem__)
        path.append(own if rng.random() < share else rng.randrange(VOCAB_TOKENS))
    text = tuple(path[len(PROMPT) :])
    return VerifiedStream(
        client=client,
        # The sampling is only a client's statement.
        sampling=Sampling(temperature=1e6, seed=0),
        prompt=PROMPT,
        tokens=text,
        guesses=(NO_GUESS,) * tokens,
    )


def believed(*streams: VerifiedStream, seed: int = 0) -> list[str]:
    return [stream.client for stream in Belief(streams, SHIPPED, seed=seed).of(streams)]


@pytest.mark.parametrize(("share", "is_believed"), [(0.0, False), (0.01, False), (0.15, True), (1.0, True)])
def test_a_client_that_sends_garbage_is_left_out_and_one_of_a_new_domain_is_not(
    share: float, is_believed: bool
) -> None:
    assert believed(text_of("honest", 0.5), text_of("other", share)) == ["honest"] + ["other"] * is_believed


def test_garbage_of_new_keys_is_not_believed_however_little_each_sends() -> None:
    forty = [text_of(f"new {number}", 0.0, tokens=90) for number in range(40)]
    assert believed(text_of("honest", 0.5), *forty) == ["honest"]
    assert believed(*forty) == []


def test_too_few_tokens_in_all_are_no_belief() -> None:
    assert believed(text_of("new", 1.0, tokens=LEAST_TOKENS - 1)) == []
    assert believed(*(text_of(f"new {number}", 1.0, tokens=LEAST_TOKENS // 2) for number in range(2))) != []


@given(known=st.integers(1, 4), new=st.integers(4, 30))
def test_newcomers_have_one_share_of_what_is_learned(known: int, new: int) -> None:
    streams = [text_of(f"known {number}", 0.5) for number in range(known)]
    streams += [text_of(f"new {number}", 0.5, tokens=LEAST_TOKENS - 1) for number in range(new)]
    found = believed(*streams)
    tokens = sum(LEAST_TOKENS - 1 for client in found if client.startswith("new"))
    assert tokens <= MOST_OF_ONE_CLIENT * (tokens + known * LEAST_TOKENS)
    # The newest of them, in their order.
    assert found[known:] == [f"new {number}" for number in range(new - len(found) + known, new)]
