"""Sampled choices: the best log-probabilities with keyed Gumbel noise added, without drawing all noise exactly.

A score log p - log(-log u) is the logarithm of a rate p / -log u (Gumbel-max; Maddison et al. 2014). A kernel
computes all rates in float32, and only the noise of the tokens with the highest ones is drawn exactly.
"""

import math
from typing import Final

import numpy as np

from cosine_engine.base import Choice
from cosine_engine.kernels.compilation import ONE, ZERO, Floats, Integers, compiled
from cosine_engine.kernels.elements import exponential
from cosine_engine.sampling import NoiseKey, Query, Words, noise_of, nothing_known, token_steps
from cosine_engine.vocabulary import RESERVED_NOISE, DraftVocabulary
from cosine_protocol.noise import MIX_A, MIX_B, position_key

FIRST: Final = np.uint64(MIX_A)
SECOND: Final = np.uint64(MIX_B)
HALF_WORD: Final = np.float32(2.0**-32)
HIGHEST: Final = np.float32(3e38)
"""Compiled kernels know no infinity."""
BLOCK: Final = 64
"""Tokens of which only the highest is compared with the highest ones so far."""
IN_DOUBT: Final = 2
"""Further tokens whose noise is drawn exactly, since the order of near-ties depends on rounding."""


def sampled(log_probs: Floats, query: Query, vocabulary: DraftVocabulary | None) -> Choice | None:
    """Return the choice after one row of log-probabilities [vocab]; None if it is not finite.

    The probabilities of candidates have a relative error of about 1e-5. Margins above 50 are not exact,
    since probabilities below e**-87 are not distinguished.
    """
    known = len(log_probs) if vocabulary is None else vocabulary.reserved_id
    key = NoiseKey(query.sampling.seed, query.position, len(log_probs), vocabulary)
    found = np.full(min(known, max(2, query.candidates) + IN_DOUBT), -1, np.int64)
    rates = np.empty(-(-known // BLOCK) * BLOCK, np.float32)
    steps = token_steps(key.tokens, vocabulary)
    total = float(
        _race(log_probs, steps, np.uint64(position_key(seed=key.seed, position=key.position)), rates, found)
    )
    found = np.sort(found[found >= 0])
    scores = log_probs[found] + noise_of(key, found)
    # A stable order: of equal scores the lowest id.
    order = np.argsort(-scores, kind="stable")
    ids, values = found[order].tolist(), scores[order].tolist()
    if not values or not math.isfinite(values[0]):
        return nothing_known(log_probs, log_probs[:known])
    if query.candidates and known < len(log_probs):
        total += float(np.exp(log_probs[known:] + np.float32(RESERVED_NOISE)).sum())
    candidates = tuple(
        (token, min(1.0, math.exp(value) / total))
        for token, value in zip(ids[: query.candidates], values, strict=False)
        if value > -math.inf
    )
    return Choice(ids[0], values[0] - values[1] if len(values) > 1 else math.inf, candidates)


@compiled
def _race(log_probs: Floats, steps: Words, key: np.uint64, rates: Floats, found: Integers) -> np.float32:
    """Write the rates [tokens, in whole blocks], and the tokens with the highest ones to `found`, in any order.

    Returns the sum of the rates, that is of the exponentials of all scores.
    """
    tokens, total = len(steps), ZERO
    for i in range(tokens):
        word = steps[i] + key
        word = (word ^ (word >> np.uint64(30))) * FIRST
        word = (word ^ (word >> np.uint64(27))) * SECOND
        # 1 - u in two parts, so that a small one is as exact as a large one.
        word = ~(word ^ (word >> np.uint64(31)))
        high, low = np.int64(word >> np.uint64(32)), np.int64(word & np.uint64(0xFFFFFFFF))
        rate = exponential(log_probs[i]) / _wait((np.float32(high) + np.float32(low) * HALF_WORD) * HALF_WORD)
        rates[i] = rate
        total += rate
    for i in range(tokens, len(rates)):
        rates[i] = -ONE
    last = -ONE
    for start in range(0, len(rates), BLOCK):
        highest = rates[start]
        for i in range(start + 1, start + BLOCK):
            highest = max(highest, rates[i])
        if highest > last:
            for i in range(start, start + BLOCK):
                if rates[i] > last:
                    last = _replace_lowest(rates, found, i)
    return total


@compiled
def _replace_lowest(rates: Floats, found: Integers, token: int) -> np.float32:
    """Replace the lowest of the tokens found by a higher one; return the rate of the lowest one then."""
    at, lowest, second = 0, HIGHEST, HIGHEST
    for place in range(len(found)):
        rate = rates[found[place]] if found[place] >= 0 else -ONE
        if rate < lowest:
            at, lowest, second = place, rate, lowest
        elif rate < second:
            second = rate
    found[at] = token
    return min(second, rates[token])


@compiled
def _wait(rest: np.float32) -> np.float32:
    """Return -log(1 - rest) for `rest` in (0, 1), with a relative error of 1e-7.

    The polynomial is that of Cephes (netlib.org/cephes, `logf`).
    """
    bits = np.float32(ONE - rest).view(np.int32)
    # The exponent that leaves a factor between the roots of a half and of two.
    power = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    z = np.int32(bits - np.int32(power << np.int32(23))).view(np.float32) - ONE
    z = -rest if power == 0 else z
    y = np.float32(7.0376836292e-2) * z - np.float32(1.1514610310e-1)
    y = y * z + np.float32(1.1676998740e-1)
    y = y * z - np.float32(1.2420140846e-1)
    y = y * z + np.float32(1.4249322787e-1)
    y = y * z - np.float32(1.6668057665e-1)
    y = y * z + np.float32(2.0000714765e-1)
    y = y * z - np.float32(2.4999993993e-1)
    y = y * z + np.float32(3.3333331174e-1)
    y = y * z * z * z - np.float32(0.5) * z * z + z
    return -(y + np.float32(power) * np.float32(0.693147180559945))
