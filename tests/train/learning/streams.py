"""Verified streams for tests."""

from random import Random

from cosine_node.drafter.observer import NO_GUESS
from cosine_protocol.request import Sampling
from cosine_train.learning.streams import VerifiedStream


def stream(
    client: str = "client", *, prompt: int = 5, tokens: int = 20, seed: int = 0, vocab: int = 256
) -> VerifiedStream:
    """Return a stream of random tokens, half of which the drafter guessed."""
    rng = Random(f"{client}/{seed}")
    text = tuple(rng.randrange(vocab) for _ in range(tokens))
    return VerifiedStream(
        client=client,
        sampling=Sampling(temperature=0.5, seed=seed),
        prompt=tuple(rng.randrange(vocab) for _ in range(prompt)),
        tokens=text,
        guesses=tuple(token if rng.random() < 0.5 else NO_GUESS for token in text),
    )
