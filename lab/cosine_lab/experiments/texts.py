"""Prompts of wanted lengths: cut from the embedded models' own prompts, or of random tokens."""

from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice, zip_longest
from random import Random

from tokenizers import Tokenizer

from cosine_node import zoo

Tokens = tuple[int, ...]


def spread(count: int, *, least: int, most: int) -> tuple[int, ...]:
    """`count` rising numbers from `least` to `most`, each the same factor above the one before."""
    return tuple(round(least * (most / least) ** (place / max(1, count - 1))) for place in range(count))


def mixed(numbers: Sequence[int], *, seed: int) -> tuple[int, ...]:
    """The same numbers in another order."""
    return tuple(Random(seed).sample(numbers, len(numbers)))


def random_prompts(lengths: Sequence[int], *, vocab_tokens: int, seed: int) -> list[Tokens]:
    """Prompts of these lengths whose tokens are all equally likely."""
    rng = Random(seed)
    return [tuple(rng.randrange(vocab_tokens) for _ in range(length)) for length in lengths]


def embedded_prompts(lengths: Sequence[int]) -> list[Tokens]:
    """Prompts of these lengths in the embedded models' tokens, the domains taking turns.

    Each begins with a prompt of its own; where that is shorter than wanted the next ones follow.
    """
    known = _known_prompts()
    starts = range(len(known))
    return [
        tuple(islice(chain.from_iterable(_from(known, start)), length))
        for start, length in zip(cycle(starts), lengths, strict=False)
    ]


def _from(prompts: Sequence[Tokens], start: int) -> Iterator[Tokens]:
    return cycle([*prompts[start:], *prompts[:start]])


def _known_prompts() -> list[Tokens]:
    tokenizer = Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))
    by_domain = [[tuple(prompt.token_ids(tokenizer)) for prompt in zoo.prompts(domain)] for domain in zoo.DOMAINS]
    return [prompt for turn in zip_longest(*by_domain) for prompt in turn if prompt]
