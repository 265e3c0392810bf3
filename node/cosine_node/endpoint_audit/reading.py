"""Reads answers with the weights of a model: the likelihood of each token, in one pass for each answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosine_engine.base import Engine, Row
from cosine_node.endpoint_audit.asking import EndpointAnswer
from cosine_p2p.text.token_effects import REPLACEMENT
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_protocol.verify import UNITS_PER_NAT, Likelihood

Numbers = NDArray[np.float64]
Tokens = NDArray[np.int64]
TOP: Final = 8
"""The likeliest tokens that are compared; a gap beyond them is large and need not be exact."""
MAX_GAP: Final = 12.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Answers of n tokens under a model.

    margins: [n], the log-likelihood of a token less that of the likeliest other, in nats; negative where it is not
    the model's first choice. logprobs, told: [n], log-probabilities of the model, and of the endpoint or NaN.
    tokens, gaps: [n, `TOP`], the likeliest tokens, and their distance to the first. excess, variance: The surprisal
    of the answers beyond that of the model's texts, in nats, and its variance.
    """

    margins: Numbers
    logprobs: Numbers
    told: Numbers
    tokens: Tokens
    gaps: Numbers
    excess: float
    variance: float

    @classmethod
    def joined(cls, readings: Sequence["Reading"]) -> "Reading":
        """The reading of several answers, one after the other."""
        return cls(
            np.concatenate([one.margins for one in readings]),
            np.concatenate([one.logprobs for one in readings]),
            np.concatenate([one.told for one in readings]),
            np.concatenate([one.tokens for one in readings]),
            np.concatenate([one.gaps for one in readings]),
            math.fsum(one.excess for one in readings),
            math.fsum(one.variance for one in readings),
        )

    def margins_of(self, choices: Tokens) -> Numbers:
        """The margins of other choices at the same places."""
        found = self.tokens == choices[:, None]
        gaps = np.where(found.any(1), self.gaps[np.arange(len(choices)), found.argmax(1)], self.gaps[:, -1])
        return np.where(found[:, 0], self.gaps[:, 1], -gaps)


def read(engine: Engine, codec: TextTokenizer, answer: EndpointAnswer, ends: Sequence[int]) -> Reading | None:
    """Read an answer, and its end unless it was cut; None for an empty one. Blocks.

    The text is tokenised by the model's tokenizer. The endpoint may have written it in other tokens, so a first
    choice that spells the following text is no departure, and the tokens within it are not judged. Raises
    `UsageError` for an engine without likelihoods or a model without chats, and the error of a pass.
    """
    if not engine.tells_likelihoods:
        raise UsageError("This engine returns no likelihoods; choose another with --engine.")
    prompt = codec.encode_chat([{"role": "user", "content": answer.question.text}])
    # A limit of tokens may cut a character.
    text, broken, _ = answer.text.partition(REPLACEMENT)
    encoded = codec.library.encode(text, add_special_tokens=False)
    spans = encoded.offsets
    tokens = [*encoded.ids, *([] if answer.is_cut or broken else ends[:1])]
    if not tokens:
        return None
    fed, first = (*prompt, *tokens[:-1]), len(prompt) - 1
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    try:
        row = Row.chain(sequence, fed, scored_from=first)
        row = Row(sequence, fed, row.nodes, row.parents, first, followers=tuple(tokens), top=TOP)
        [result] = engine.forward([row])
    finally:
        engine.release(sequence)
    if result.error is not None:
        raise result.error
    found = result.likelihoods
    top = np.array([[each.token for each in one.top] for one in found], np.int64)
    nats = np.array([[each.surprisal for each in one.top] for one in found]) / UNITS_PER_NAT
    logprobs = np.array([-one.surprisal for one in found]) / UNITS_PER_NAT
    gaps = np.minimum(nats - nats[:, :1], MAX_GAP)
    margins = -np.minimum(-logprobs - nats[:, 0], MAX_GAP)
    judged_from = 0
    for place, (token, best) in enumerate(zip(tokens, top[:, 0].tolist(), strict=True)):
        start = len(text[: spans[place][0]].encode()) if place < len(spans) else len(text.encode())
        spelled = codec.token_bytes(best)
        if start < judged_from:
            margins[place] = MAX_GAP
        elif token == best or {token, best} <= set(ends):
            margins[place] = gaps[place, 1]
        elif spelled and text.encode()[start:].startswith(spelled):
            margins[place] = gaps[place, 1]
            judged_from = start + len(spelled)
    excess, variance = np.array([_surprise(one, token) for one, token in zip(found, tokens, strict=True)]).sum(0)
    told = _told(answer, text, [*spans, *[(-1, -1)] * (len(tokens) - len(spans))])
    return Reading(margins, logprobs, told, top, gaps, float(excess), float(variance))


def _told(answer: EndpointAnswer, text: str, spans: Sequence[tuple[int, int]]) -> Numbers:
    """The endpoint's log-probabilities of the tokens at these places of the text, where it has the same ones."""
    known: dict[tuple[int, int], float] = {}
    place = 0
    for token, logprob in answer.told:
        if not token or not text.startswith(token, place):
            break
        known[place, place + len(token)] = logprob
        place += len(token)
    return np.array([known.get(span, math.nan) for span in spans])


def _surprise(told: Likelihood, token: int) -> tuple[float, float]:
    """Return the surprisal of a token minus its mean under the model, and its variance, in nats.

    All tokens but the likeliest count as one outcome, so that mean and variance are exact.
    """
    nats = {each.token: each.surprisal / UNITS_PER_NAT for each in told.top}
    chances = [math.exp(-each) for each in nats.values()]
    rest = max(1e-9, 1.0 - math.fsum(chances))
    of_rest = max(*nats.values(), -math.log(rest))
    outcomes = list(zip([*chances, rest], [*nats.values(), of_rest], strict=True))
    mean = math.fsum(chance * each for chance, each in outcomes)
    return nats.get(token, of_rest) - mean, math.fsum(chance * (each - mean) ** 2 for chance, each in outcomes)
