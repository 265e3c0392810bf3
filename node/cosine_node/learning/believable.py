"""The clients whose texts are learned from: those whose texts a drafter guesses better than by chance. Pure.

Nobody signs what a client says that its target wrote. A drafter guesses what a target did write now and then, also
in a domain that it does not know; the tokens of garbage have nothing to do with its guesses.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from cosine_node.learning.verified_stream import NO_GUESS, VerifiedStream

LEAST_GUESSES: Final = 100
"""A choice: with fewer, chance and knowledge look alike."""
TIMES_CHANCE: Final = 3.5
"""Right guesses that chance alone would bring, so many times, are the least that is believed. Measured: 5.8 to 30
times for 32 clients of 330 to 1,024 tokens of domains that are new, 0.7 to 1.3 for shuffled tokens, 1.6 to 2.4 for
texts of which every second token was another (three drafters of the toy family; literature and medical texts)."""


def doubted_clients(streams: Sequence[VerifiedStream]) -> frozenset[str]:
    """The clients in whose texts right guesses are about as many as if tokens and guesses came in any order.

    By chance a guess is right as often as it was guessed times it was said, over all tokens of the client.
    """
    guesses: defaultdict[str, Counter[int]] = defaultdict(Counter)
    said: defaultdict[str, Counter[int]] = defaultdict(Counter)
    right: Counter[str] = Counter()
    for stream in streams:
        for guess, token in zip(stream.guesses, stream.tokens, strict=True):
            if guess != NO_GUESS:
                guesses[stream.client][guess] += 1
                said[stream.client][token] += 1
                right[stream.client] += guess == token
    doubted = set()
    for client, guessed in guesses.items():
        if (count := guessed.total()) >= LEAST_GUESSES:
            by_chance = sum(times * said[client][token] for token, times in guessed.items()) / count
            if right[client] <= TIMES_CHANCE * by_chance:
                doubted.add(client)
    return frozenset(doubted)
