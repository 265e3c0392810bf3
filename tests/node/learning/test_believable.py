"""Clients whose texts are guessed by chance alone are left out; those of a domain that is new are not."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.drafter.observer import NO_GUESS
from cosine_node.learning.finetuning import LEAST_GUESSES, doubted_clients
from cosine_node.learning.streams import VerifiedStream
from cosine_protocol.request import Sampling


def text(client: str, share: float, *, tokens: int = 400, seed: int = 0) -> VerifiedStream:
    """A text of common and rare tokens, of which the drafter guessed a share right; else it guessed any of them."""
    rng = Random(seed)
    common = [*([1] * 30), *([2] * 20), *range(3, 200)]
    said = tuple(rng.choice(common) for _ in range(tokens))
    guesses = tuple(token if rng.random() < share else rng.choice(common) for token in said)
    return VerifiedStream(client=client, sampling=Sampling(), prompt=(1,), tokens=said, guesses=guesses, failed=())


def test_a_client_that_sends_garbage_is_left_out() -> None:
    assert doubted_clients([text("honest", 0.3), text("liar", 0.0, seed=1)]) == {"liar"}


def test_a_client_whose_texts_are_half_garbage_is_left_out() -> None:
    assert doubted_clients([text("honest", 0.3), text("liar", 0.02, seed=1)]) == {"liar"}


def test_a_client_of_a_domain_that_is_new_is_not() -> None:
    assert doubted_clients([text("expert", 0.6), text("newcomer", 0.1, seed=1)]) == frozenset()


def test_tokens_without_a_guess_say_nothing() -> None:
    unheard = VerifiedStream(
        client="late", sampling=Sampling(), prompt=(1,), tokens=(5,) * 400, guesses=(NO_GUESS,) * 400, failed=()
    )
    assert doubted_clients([unheard]) == frozenset()


@given(st.integers(0, LEAST_GUESSES - 1), st.integers(0, 1 << 30))
def test_of_few_guesses_nothing_follows(tokens: int, seed: int) -> None:
    assert doubted_clients([text("short", 0.0, tokens=tokens, seed=seed)]) == frozenset()


@given(st.floats(0.3, 1), st.integers(0, 1 << 30))
def test_whoever_is_guessed_often_is_believed(share: float, seed: int) -> None:
    assert doubted_clients([text("client", share, seed=seed)]) == frozenset()
