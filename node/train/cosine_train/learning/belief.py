"""Whose texts a drafter learns from: of nobody's word, but as far as its shipped weights see sense in them.

Nobody signs what a client says that its target wrote. Weights that were never told by strangers guess what a target
did write now and then, also in a domain that they do not know; the tokens of garbage have nothing to do with their
guesses. So a client is believed whose tokens are those that the shipped weights find likeliest `TIMES_CHANCE` times
as often as if tokens and guesses came in any order. The likeliest ones count, whatever the sampling: what is drawn
at an absurd temperature is noise, which every drafter would draw alike.

A new key costs nothing, and a few tokens look like sense by chance. So all clients of fewer than `LEAST_TOKENS` are
one: believed or not together, with a quarter of what is learned at most.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from cosine_node.engine.base import Engine
from cosine_protocol.request import Sampling
from cosine_train.learning.stream_store import MOST_OF_ONE_CLIENT
from cosine_train.learning.streams import VerifiedStream
from cosine_train.training.distilling import POOL_TOKENS, choices_along

LEAST_TOKENS: Final = 300
"""With fewer, chance and sense look alike: single texts of 96 tokens of the target were guessed 1.4 to 50 times as
often as by chance, garbled ones 0 to 5.4 times."""
TIMES_CHANCE: Final = 3.5
"""Measured along 24 such texts together, of medicine, literature and dialogues at temperatures of 0, 0.8 and 1, by
three drafters of the toy family: 7.8 to 47 times. Shuffled tokens 0.9 to 2.1 times, texts of which every second
token was another 0.8 to 1.5 times. By three drafters of SmolLM2 along eight texts 4.3 to 27.5 times, 0.8 to 2.4 and
0.5 to 1.8 times."""
JUDGED_TOKENS: Final = 2048
"""Bounds the time: so much of each client, drawn by lot, is read by the shipped weights."""
NEWCOMERS: Final = ""
"""The client that all are who are new; no peer has that name."""


class Belief:
    """The clients of some streams that are believed, and how much of those of newcomers counts."""

    def __init__(self, streams: Sequence[VerifiedStream], shipped: Engine, *, seed: int) -> None:
        """`shipped` are the weights that the drafter came with; `seed` draws what is judged."""
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
        """Those to learn from, in the order given; of newcomers the last ones."""
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
    """True if the shipped weights guess the tokens of one client far more often than by chance."""
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
