"""The choice of clients that a drafter learns from: their texts must be plausible to its shipped weights.

Texts that clients report as their target's are unsigned. The shipped weights guess some tokens of a real target,
even in an unknown domain; garbage is independent of their guesses. A client is believed if its tokens equal the
likeliest tokens of the shipped weights `TIMES_CHANCE` times as often as in random order. Sampling is ignored: at an
absurd temperature every drafter would draw the same noise.

New keys cost nothing, and a few tokens may be plausible by chance. All clients with fewer than `LEAST_TOKENS` are
therefore judged as one, and contribute at most a quarter of the training data.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from cosine_engine.base import Engine
from cosine_protocol.request import Sampling
from cosine_train.learning.stream_store import MOST_OF_ONE_CLIENT
from cosine_train.learning.streams import VerifiedStream
from cosine_train.training.distilling import POOL_TOKENS, choices_along

LEAST_TOKENS: Final = 300
"""With fewer, chance is too large: single texts of 96 tokens of the target were guessed 1.4 to 50 times as often as
by chance, shuffled ones 0 to 5.4 times."""
TIMES_CHANCE: Final = 3.5
"""Measured along 24 such texts of three domains at temperatures of 0, 0.8 and 1, with three drafters of the toy
family: 7.8 to 47 times; shuffled tokens 0.9 to 2.1, with every second token replaced 0.8 to 1.5 times. With three
drafters of SmolLM2 along eight texts: 4.3 to 27.5, 0.8 to 2.4 and 0.5 to 1.8 times."""
JUDGED_TOKENS: Final = 2048
"""Bounds the time: tokens of each client that the shipped weights read, from randomly drawn texts."""
NEWCOMERS: Final = ""
"""The common name of all new clients; no peer has it."""


class Belief:
    """The clients of some streams that are believed, and the limit on newcomers."""

    def __init__(self, streams: Sequence[VerifiedStream], shipped: Engine, *, seed: int) -> None:
        """Judge the clients of `streams` by the `shipped` weights, along texts drawn with `seed`."""
        tokens: Counter[str] = Counter()
        for stream in streams:
            tokens[stream.client] += len(stream.tokens)
        self._known = {client for client, count in tokens.items() if count >= LEAST_TOKENS}
        said: defaultdict[str, list[VerifiedStream]] = defaultdict(list)
        for stream in streams:
            said[self._pooled(stream.client)].append(stream)
        rng = random.Random(seed)
        self._believed = {client for client, own in sorted(said.items()) if _makes_sense(own, shipped, rng)}

    def _pooled(self, client: str) -> str:
        return client if client in self._known else NEWCOMERS

    def of(self, streams: Sequence[VerifiedStream]) -> list[VerifiedStream]:
        """Return the streams to learn from, in the given order; of newcomers the last ones."""
        known = sum(len(one.tokens) for one in streams if self._pooled(one.client) in self._believed & self._known)
        share = MOST_OF_ONE_CLIENT / (1 - MOST_OF_ONE_CLIENT)
        left = share * known if known else float("inf")
        chosen: list[VerifiedStream] = []
        for stream in reversed(streams):
            if self._pooled(stream.client) not in self._believed:
                continue
            if stream.client not in self._known:
                left -= len(stream.tokens)
                if left < 0:
                    continue
            chosen.append(stream)
        return chosen[::-1]


def _makes_sense(streams: Sequence[VerifiedStream], shipped: Engine, rng: random.Random) -> bool:
    """Return True if the shipped weights guess the tokens of one client far more often than by chance."""
    guesses: Counter[int] = Counter()
    said: Counter[int] = Counter()
    right = judged = 0
    longest = min(shipped.context_tokens, POOL_TOKENS)
    for stream in rng.sample(streams, len(streams)):
        text = stream.tokens[: min(longest // 2, JUDGED_TOKENS - judged)]
        if not text:
            continue
        prompt = stream.prompt[len(text) - longest :]
        for choice, token in zip(choices_along(shipped, prompt, text, Sampling()), text, strict=True):
            guesses[choice.token] += 1
            said[token] += 1
            right += choice.token == token
        judged += len(text)
    if judged < LEAST_TOKENS:
        return False
    by_chance = sum(times * said[token] for token, times in guesses.items()) / judged
    return right > TIMES_CHANCE * by_chance
