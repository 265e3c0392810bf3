"""Text between two tokenizers: another model's predictions in the tokens of a target. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from tokenizers import Tokenizer

from cosine_p2p.text.token_effects import REPLACEMENT

CONTEXT_TOKENS: Final = 16
"""Tokens before a boundary that decide how text after it is tokenised."""
MAX_HALF_TOKENS: Final = 3
"""Bound: a character has at most four bytes, and a token at least one."""
SAMPLED_TOKENS: Final = 1024
"""Bounds the time at the start: tokens of the target's vocabulary that are counted in own tokens."""

# Written for this purpose: prose and code in equal parts.
TYPICAL_TEXT: Final = """\
It was late when she came home, and nobody had left a light on in the kitchen. "You could have called," he said.
The committee meets again on 14 March 2026; until then the proposal stays open for comments from all members.

def read_lines(path: str, *, limit: int = 100) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [line.rstrip() for line in file][:limit]
"""

Plan = tuple[tuple[int, float], ...]
"""Consecutive target tokens, each with the probability that it follows the one before."""


class TextTokens(Protocol):
    """Text to token ids and back, without special tokens. Half a character decodes to U+FFFD."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class PlainTokens:
    """Implements `TextTokens` with a fast tokenizer, and disables its truncation and padding.

    With `spells_special` special tokens have texts too.
    """

    def __init__(self, tokenizer: Tokenizer, *, spells_special: bool = False) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._spells_special = spells_special

    def encode(self, text: str) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=not self._spells_special)
        return text

    @property
    def lead(self) -> tuple[int, ...]:
        """The special tokens at the beginning of every text."""
        plain = list(self.encode("a"))
        full = self._tokenizer.encode("a").ids
        starts = (start for start in range(len(full)) if full[start : start + len(plain)] == plain)
        return tuple(full[: next(starts, 0)])

    @property
    def ends(self) -> frozenset[int]:
        """Special tokens: no text follows them."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token for token, what in added.items() if what.special)


class After(Enum):
    """The text that follows a predicted text."""

    MORE = auto()
    """The text will be known: only tokens that it cannot change count."""
    UNKNOWN = auto()
    """The text will not be known: it usually changes at most the last token."""
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class PredictedToken:
    """The token that a model predicts as likeliest, and its probability."""

    token: int
    probability: float


def own_per_target(own: TextTokens, target: TextTokens, *, vocab_tokens: int) -> float:
    """Return the own tokens per target token, at least 1: a bound for all but unusual texts.

    It is the mean over the vocabulary, in which long words are as frequent as short ones: texts take about half.
    """
    step = max(1, vocab_tokens // SAMPLED_TOKENS)
    texts = [target.decode((token,)) for token in range(0, vocab_tokens, step)]
    counts = [len(own.encode(text)) for text in texts if text and text == whole_text(text)]
    return max(1.0, math.fsum(counts) / len(counts)) if counts else 1.0


def typical_own_per_target(own: TextTokens, target: TextTokens) -> float:
    """Return the own tokens predicted per target token, by a few lines of prose and code."""
    return len(own.encode(TYPICAL_TEXT)) / max(1, len(target.encode(TYPICAL_TEXT)))


def whole_text(text: str) -> str:
    """Return the text without half a character at its end."""
    return text.rstrip(REPLACEMENT)


def decode_whole(tokenizer: TextTokens, tokens: Sequence[int]) -> str:
    """Return the text of tokens without half a character at its end.

    Under byte fallback half a character changes the bytes before it, so that it is searched in the tokens.
    """
    text = tokenizer.decode(tokens)
    whole = whole_text(text)
    if whole == text:
        return text
    shorter = (tokenizer.decode(tokens[:-half]) for half in range(1, MAX_HALF_TOKENS + 1))
    return max(whole, next((text for text in shorter if not text.endswith(REPLACEMENT)), ""), key=len)


def is_last(
    own: TextTokens, *, own_before: Sequence[int], predicted: Sequence[PredictedToken], ends: frozenset[int]
) -> bool:
    """Return True if no text follows: the model ended it, or predicts no character."""
    if predicted and predicted[-1].token in ends:
        return True
    context = _last_tokens(own, own_before)
    text = decode_whole(own, [*context, *(one.token for one in predicted)])
    return REPLACEMENT in text[len(own.decode(context)) :]


def plan_tokens(
    target: TextTokens,
    own: TextTokens,
    *,
    before: Sequence[int],
    own_before: Sequence[int],
    predicted: Sequence[PredictedToken],
    after: After,
) -> Plan:
    """Return the target tokens of a prediction after `own_before`, a text that the target writes as `before`.

    A token's probability is the product of those of the model's tokens that begin in its text.
    """
    own_context = _last_tokens(own, own_before)
    texts = _growing_text(own, own_context, [one.token for one in predicted])
    starts = [(len(text), one.probability) for one, text in zip(predicted, texts, strict=False)]
    return plan_text(target, before=before, text=texts[-1], starts=starts, after=after)[0]


def plan_text(
    target: TextTokens, *, before: Sequence[int], text: str, starts: Iterable[tuple[int, float]], after: After
) -> tuple[Plan, int]:
    """Return the target tokens of a text after `before`, and how many of its characters they have.

    `starts` are where the tokens of a model begin in the text, and their probabilities.
    """
    context, tokens = _tokens_after(target, before, text, after)
    ends = [len(text) for text in _growing_text(target, context, tokens)[1:]]
    probabilities = [1.0] * len(tokens)
    for start, probability in starts:
        index = next((index for index, end in enumerate(ends) if end > start), None)
        if index is not None:
            probabilities[index] *= probability
    return tuple(zip(tokens, probabilities, strict=True)), ends[-1] if ends else 0


def _last_tokens(tokenizer: TextTokens, tokens: Sequence[int]) -> Sequence[int]:
    """Return the end of a text that does not begin within a character, if it has such an end."""
    ends = [tokens[-CONTEXT_TOKENS - more :] for more in range(MAX_HALF_TOKENS + 1)]
    return next((end for end in ends if not tokenizer.decode(end).startswith(REPLACEMENT)), ends[0])


def _growing_text(tokenizer: TextTokens, context: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Return the text that the first 0, 1, 2, ... tokens add to that of the context, up to an invalid character."""
    base = tokenizer.decode(context)
    texts = [decode_whole(tokenizer, [*context, *tokens[:count]]) for count in range(len(tokens) + 1)]
    return [text[len(base) :].partition(REPLACEMENT)[0] if text.startswith(base) else "" for text in texts]


def _tokens_after(
    target: TextTokens, before: Sequence[int], text: str, after: After
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the context used, and the tokens of the text after it."""
    if not text:
        return (), ()
    context, tokens = _in_context(target, before, text)
    if after is not After.NOTHING:
        full = target.decode(context) + text
        settled = _settled(target, full, [*context, *tokens])[len(context) :]
        tokens = settled if settled or after is After.MORE else tokens[:-1] or tokens
    while tokens and target.decode([*context, *tokens]).endswith(REPLACEMENT):
        tokens = tokens[:-1]
    return context, tokens


def _in_context(target: TextTokens, before: Sequence[int], text: str) -> tuple[Sequence[int], Sequence[int]]:
    """Return the longest context with unchanged tokens when the text is tokenised with it, and the text's tokens.

    If there is none, as amid characters of many tokens where every text begins with a mark, a new line is used.
    """
    for length in range(min(CONTEXT_TOKENS, len(before)), 0, -1):
        context = list(before[-length:])
        tokens = list(target.encode(target.decode(context) + text))
        if tokens[:length] == context:
            return context, tokens[length:]
    line, tokens = list(target.encode("\n")), list(target.encode("\n" + text))
    if before and tokens[: len(line)] == line:
        return line, tokens[len(line) :]
    return (), target.encode(text)


def _settled(target: TextTokens, text: str, tokens: Sequence[int]) -> Sequence[int]:
    """Return a text's tokens that stay the same whatever follows the text.

    Tokenizers first split text into words, so that tokens before the last character where any of them splits count
    as settled; none does without such a character.
    """
    ends = range(len(text) - 1, 0, -1)
    last_split = next((end for end in ends if _splits(text[end - 1], text[end])), 0)
    settled = []
    for one, other in zip(tokens, target.encode(text[:last_split]), strict=False):
        if one != other:
            break
        settled.append(one)
    return settled


def _splits(left: str, right: str) -> bool:
    # Punctuation may take a following letter or newline into its token, a word neither.
    return (left.isalnum() and not right.isalnum()) or (right == " " and not left.isspace())
