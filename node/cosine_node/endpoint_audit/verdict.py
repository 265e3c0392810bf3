"""The verdict about the model behind an endpoint, from its answers. Pure.

*Distance.* Two computations of a model, in other numerics or with other weights, give different scores: assume that
the difference between two tokens' scores moves by a logistic variable of scale s, in nats. A greedy endpoint then
chooses a token that the given weights prefer by a margin m with probability 1 / (1 + exp(-m / s)), also for
negative m. One pass of the weights over each answer gives all margins, and so the likelihood of the answers for
each s: agreement at small margins counts, departures at large ones count most. Where an endpoint reports
log-probabilities, their differences from the model's, assumed Laplacian of scale s, are much stronger evidence.

*Forms* are the weights in each of the numerics that this machine can produce, including the claimed one. The same
software computes a form at distance 0; other software sums in another order and is within the rounding of its
numerics (`rounding_of`). Over the same answers, each form also has a distance from the most exact one. On the line
of s around the exact form, each form has the interval up to halfway to its neighbours, as a ratio, since other
software is as far from the exact scores as the form. The line ends at twice the distance of the farthest form.

*Verdict.* Each form within its rounding, each interval of the line, and the rest of the line are hypotheses, with
their maximum likelihoods. Those within `PLAUSIBLE` nats of the best are kept. If they agree, that is the verdict,
else it is undecided. Numerics of 16 bits and more count as one model, since text hardly distinguishes them; the
best fits are named.

*Sampled answers* have no margins. Their surprisal, less its mean under the claimed form, has the mean 0 and a known
variance; `MOST_SURPRISE` standard deviations accuse. This finds endpoints that are honest only in greedy answers.
The filters of samplers make answers only less surprising.

*Error rates* are computed for the questions that were asked: answers of each form, in this and in other software,
and of models at the distances `FAR` are drawn and judged repeatedly.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cosine_node.endpoint_audit.reading import Numbers, Reading, Tokens
from cosine_p2p.trust.audit_rule import rounding_of
from cosine_protocol.numerics import GROUPED, LLAMA, arithmetic_of, held_type_of, stored_type_of

Rates = Mapping[str, Mapping[str, float]]
"""The share of each verdict, by what is true."""

SCALES: Final = np.geomspace(1e-5, 10.0, 49)
LEAST_NOISE: Final = 3e-4
"""More than the rounding of float32 in any library, and less than that of float16."""
NOISE_PER_NEAR_TIE: Final = 1 / 32
"""SmolLM2 in bfloat16 was 0.042 to 0.056 nats from float32, with inputs in eight bits 0.1; their near ties end at
1.25 and 3. An endpoint may stand twice as far from a form, since both round."""
TOLD_SHARE: Final = 0.5
"""Log-probabilities move half as far as margins: by 0.026 and 0.045 in these."""
PLAUSIBLE: Final = 7.0
"""A likelihood ratio of 1,100."""
WORST: Final = -12.0
"""Bounds what one token says, which may have a cause of its own."""
MOST_SURPRISE: Final = 5.0
"""3e-7 of a normal variable is above."""
FOUR_BITS: Final = 0.2
"""The distance of four-bit weights, where none can be made: SmolLM2's in Q4_1 are 0.15 away."""
FAR: Final = (0.5, 1.0, 2.0)
DRAWS: Final = 8
"""Drawn answers of each truth, each judged in `SETS` sets of the questions."""
SETS: Final = 50


class EndpointVerdict(StrEnum):
    THIS = "this model"
    QUANTISED = "this model, quantised otherwise"
    ANOTHER = "another model"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class HeldForm:
    """The weights in some numerics, their reading of all answers, and the index at which each answer begins."""

    numerics: str
    reading: Reading
    starts: Tokens

    @property
    def noise(self) -> float:
        """The scale of its rounding, in nats."""
        return max(LEAST_NOISE, rounding_of(self.numerics).near_tie * NOISE_PER_NEAR_TIE)

    @property
    def kind(self) -> str:
        """The stored type of its weights; "" for 16 bits and more."""
        is_llama = arithmetic_of(self.numerics) == LLAMA
        read = stored_type_of(self.numerics) if is_llama else held_type_of(self.numerics)
        return read if read in GROUPED or (read and is_llama and read not in ("F32", "F16", "BF16")) else ""

    def curves(self, choices: Tokens | None, told: Numbers | None) -> Numbers:
        """The log-likelihood [questions, `SCALES`] of reported log-probabilities, else of choices or answers."""
        if told is not None:
            gaps = np.abs(told - self.reading.logprobs)[:, None]
            # Places without a report do not count.
            nats = np.where(np.isnan(gaps), 0.0, np.maximum(WORST, -gaps / SCALES - np.log(2 * SCALES)))
        else:
            margins = self.reading.margins if choices is None else self.reading.margins_of(choices)
            nats = np.maximum(WORST, -np.logaddexp(0.0, -margins[:, None] / SCALES))
        return np.asarray(np.add.reduceat(nats, self.starts))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An endpoint at one of some `scales` from a form, given by its index."""

    verdict: EndpointVerdict
    name: str
    form: int
    scales: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the fitting hypotheses, likeliest first, and the distance from the claimed form in nats."""

    verdict: EndpointVerdict
    fits: tuple[str, ...]
    distance: float

    @classmethod
    def of(cls, curves: Numbers, hypotheses: Sequence[Hypothesis]) -> "Judgement":
        """Judge by log-likelihoods [forms, `SCALES`]."""
        nats = [curves[each.form, each.scales].max(initial=-np.inf) for each in hypotheses]
        order = np.argsort(-np.array(nats), kind="stable")
        kept = [hypotheses[place] for place in order if nats[place] >= max(nats) - PLAUSIBLE]
        verdicts = {each.verdict for each in kept}
        verdict = kept[0].verdict if len(verdicts) == 1 else EndpointVerdict.UNDECIDED
        return cls(verdict, tuple(each.name for each in kept), float(SCALES[curves[0].argmax()]))


def hypotheses_of(
    forms: Sequence[HeldForm],
    noises: Sequence[float],
    distances: Sequence[float],
    verdicts: Sequence[EndpointVerdict],
    exact: int,
) -> list[Hypothesis]:
    """Each form within its rounding, and the intervals of the line around the `exact` one, given by its index."""
    named = [
        Hypothesis(verdict, form.numerics, place, 2 * noise >= SCALES)
        for place, (form, noise, verdict) in enumerate(zip(forms, noises, verdicts, strict=True))
    ]
    names = (f"like {form.numerics}" for form in forms)
    line = sorted(zip(distances, verdicts, names, strict=True))
    if EndpointVerdict.QUANTISED not in verdicts:
        line.append((max(FOUR_BITS, 2 * line[-1][0]), EndpointVerdict.QUANTISED, "like four bits"))
    ends = [0.0, *((one[0] * other[0]) ** 0.5 for one, other in pairwise(line)), 2 * line[-1][0], np.inf]
    line.append((np.inf, EndpointVerdict.ANOTHER, EndpointVerdict.ANOTHER.value))
    return named + [
        Hypothesis(verdict, name, exact, (begin < SCALES) & (end >= SCALES))
        for (begin, end), (_, verdict, name) in zip(pairwise(ends), line, strict=True)
    ]


def judge(forms: Sequence[HeldForm], told: Numbers | None = None, *, draws: int = DRAWS) -> tuple[Judgement, Rates]:
    """Judge by the choices, or by the log-probabilities `told`; without `draws` no error rates are computed."""
    drawn = np.random.default_rng(0)

    def curves_of(truth: HeldForm, noise: float) -> Numbers:
        """The log-likelihoods [forms, questions, `SCALES`] of drawn answers of a form with this noise."""
        own = truth.reading
        said = None if told is None else own.logprobs + drawn.laplace(scale=noise, size=len(told)) + 0 * told
        is_moved = drawn.logistic(scale=noise, size=len(own.gaps)) > own.gaps[:, 1]
        chosen = np.where(is_moved, own.tokens[:, 1], own.tokens[:, 0])
        return np.array([form.curves(chosen, said) for form in forms])

    # From the exact form, and from the claimed one: eight bits hold four exactly.
    exact = min(range(len(forms)), key=lambda place: (forms[place].kind, forms[place].noise))
    distances = [SCALES[curves_of(form, 0.0).sum(1).argmax(1)] for form in forms]
    verdicts = [
        EndpointVerdict.THIS if form.kind == forms[0].kind or each[0] <= LEAST_NOISE else EndpointVerdict.QUANTISED
        for form, each in zip(forms, distances, strict=True)
    ]
    share = 1.0 if told is None else TOLD_SHARE
    noises = [form.noise * share for form in forms]
    apart = [float(max(each[exact], noise)) for each, noise in zip(distances, noises, strict=True)]
    hypotheses = hypotheses_of(forms, noises, apart, verdicts, exact)
    truths = {form.numerics: (form, LEAST_NOISE * share) for form in forms}
    for form, far in zip(forms, apart, strict=True):
        if far > LEAST_NOISE:
            truths[f"{form.numerics} in other software"] = (forms[exact], far)
    truths |= {f"another model, {far:g} nats away": (forms[exact], far * share) for far in FAR}
    rates: dict[str, dict[str, float]] = {}
    for name, (truth, noise) in truths.items() if draws else ():
        counts: Counter[str] = Counter()
        for _ in range(draws):
            curves = curves_of(truth, noise)
            for chosen in drawn.integers(curves.shape[1], size=(SETS, curves.shape[1])):
                counts[Judgement.of(curves[:, chosen].sum(1), hypotheses).verdict] += 1
        rates[name] = {verdict: counts[verdict] / counts.total() for verdict in EndpointVerdict}
    own = np.array([form.curves(None, told).sum(0) for form in forms])
    return Judgement.of(own, hypotheses), rates


def conclude(text: Judgement, told: Judgement | None, surprise: float) -> EndpointVerdict:
    """The verdict of all evidence. Log-probabilities of another model than the text's decide nothing."""
    if text.verdict is EndpointVerdict.ANOTHER or surprise > MOST_SURPRISE:
        return EndpointVerdict.ANOTHER
    if told is None:
        return text.verdict
    is_at_odds = told.verdict is EndpointVerdict.ANOTHER and EndpointVerdict.ANOTHER not in text.fits
    return EndpointVerdict.UNDECIDED if is_at_odds else told.verdict
