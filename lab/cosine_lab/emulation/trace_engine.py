"""Engines that replay acceptance traces: the recorded target and its drafters, in microseconds per pass."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from cosine_engine.base import PREFIX, Choice, Row, RowResult
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.tree import SequenceTree
from cosine_lab.emulation.traces import BASE, CANDIDATES, DIGITS, VOCAB_TOKENS, Trace, TraceSet
from cosine_protocol.errors import UsageError
from cosine_protocol.noise import GAMMA, MASK, mix64
from cosine_protocol.request import Sampling

POOL_TOKENS: Final = 65_536
OFF_STREAM_TOKEN: Final = 0
"""The target's answer without a recording."""
NEAR_TIE_MARGIN: Final = 5e-5
"""The margin of a recorded near-tie, below the threshold of 1e-4."""
# The draft probabilities of an oracle: certainty, and next to nothing, since a probability of 0 has no logarithm.
ORACLE_HIT: Final = 1.0
ORACLE_MISS: Final = 1e-6
ON_STREAM: Final = 0
"""The path of a `TraceState` on the recorded stream; no hash is 0."""
UNIT: Final = 2.0**-53
"""Turns 53 random bits into a number from 0 up to 1."""


class Law(Enum):
    """The rule by which a drafter's first candidate is the target's token."""

    COUPLED = "coupled"
    """As recorded, with shared noise (docs/design.md, "The output is a function of the request")."""
    PUBLISHED = "published"
    """With probability 1 - TV(p, q), as speculative sampling accepts (Leviathan et al., arXiv 2211.17192)."""


class TraceState(NamedTuple):
    """The state of a sequence after a token.

    `position` is the output position of what follows, below 0 inside the prompt. `trace` is None while the prompt's
    digits are read, and `path` the number read so far; later it is `ON_STREAM` or a hash of the way off the stream.
    """

    trace: Trace | None
    position: int
    path: int


class TraceEngine(PagedEngine, ABC):
    """The base of engines over traces. Implements `cosine_engine.base.Engine`, contract checks included.

    A sequence must begin with the stand-in prompt of one of the traces; a pass raises `UsageError`, and feeds
    nothing, if it does not. Whatever the sampling parameters, the answers are those recorded.
    """

    def __init__(self, traces: TraceSet) -> None:
        super().__init__(
            PagePool(tokens=POOL_TOKENS),
            vocab_tokens=traces.vocab_tokens,
            context_tokens=VOCAB_TOKENS,
            numerics="float32",
        )
        self._traces = traces
        # By pool slot, like keys and values: a state is valid as long as the slot of its token is taken.
        self._states: dict[int, TraceState] = {}
        self.passes = 0

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        # A state counts from the end of the prompt, so that only prompts of one length can share it.
        scope = None if scope is None else f"{prompt_tokens} {scope}"
        return super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass. Raises `LocalProtocolError`, `OutOfPages` or `UsageError` without feeding anything."""
        trees = self.feed(rows)
        try:
            reached = [self._follow(tree, row) for tree, row in zip(trees, rows, strict=True)]
        except UsageError:
            self.unfeed(rows)
            raise
        self.passes += bool(rows)
        results = []
        for row, states in zip(rows, reached, strict=True):
            choices = tuple(self._choice(state, row.candidates) for state in states[row.scored_from :])
            results.append(RowResult(choices=choices, nll=self._nll(states[1:]) if row.wants_nll else None))
        return results

    def _follow(self, tree: SequenceTree, row: Row) -> list[TraceState]:
        """Return the state after each token of a fed row."""
        prefix = self._states[tree.slots[-1]] if tree.slots else TraceState(None, -tree.prompt_tokens, 0)
        states = []
        for name, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            before = prefix if parent == PREFIX else self._states[tree.nodes[parent].slot]
            states.append(self.state_after(before, token, tree.prompt_tokens))
            self._states[tree.nodes[name].slot] = states[-1]
        return states

    def state_after(self, before: TraceState, token: int, prompt_tokens: int) -> TraceState:
        """Return the state after a token. Raises `UsageError` if the prompt is of no trace."""
        trace, position = before.trace, before.position + 1
        if trace is None:
            digit = before.position + prompt_tokens
            number = before.path + token * BASE**digit
            if digit + 1 < min(DIGITS, prompt_tokens):
                return TraceState(None, position, number)
            trace = self._traces.numbered(number)
            if trace.prompt_tokens != prompt_tokens:
                raise UsageError(
                    f"The prompt of trace {number} has {trace.prompt_tokens} tokens, not {prompt_tokens}."
                )
            return TraceState(trace, position, ON_STREAM)
        if position <= 0 or (before.path == ON_STREAM and token == stream_token(trace, before.position)):
            return TraceState(trace, position, ON_STREAM)
        return TraceState(trace, position, mix64((hashed(before) + token * GAMMA) & MASK) or 1)

    @abstractmethod
    def _choice(self, state: TraceState, candidates: int) -> Choice: ...

    @abstractmethod
    def _nll(self, states: Sequence[TraceState]) -> float | None:
        """Return the mean negative log-likelihood of the tokens that led to these states; None if unknown."""


class TraceTarget(TraceEngine):
    """The target: on a stream its choice is the next token, elsewhere `OFF_STREAM_TOKEN`.

    The margin is infinite, or below 1e-4 where the trace had a near-tie. Beyond a recorded stream it continues with
    tokens drawn by hash. The traces hold no likelihoods of the target's, so a row's is None.
    """

    def _choice(self, state: TraceState, candidates: int) -> Choice:
        trace, token, margin = state.trace, OFF_STREAM_TOKEN, math.inf
        if trace is not None and state.position >= 0 and state.path == ON_STREAM:
            token = stream_token(trace, state.position)
            if state.position < len(trace.stream) and trace.near_ties[state.position]:
                margin = NEAR_TIE_MARGIN
        return Choice(token, margin, ((token, 1.0),) if candidates else ())

    def _nll(self, states: Sequence[TraceState]) -> float | None:
        return None


class TraceDrafter(TraceEngine):
    """One drafter of the traces, by model name. Raises `UsageError` if a trace does not know it.

    On a stream it gives the recorded candidates. Off it, and beyond its end, it gives the draft probabilities of
    another position of the trace, with other tokens, all drawn by a hash of the path: below a wrong token they have
    the shape they had in that trace. Under `Law.PUBLISHED` the tokens change ranks and the draft probabilities stay
    with the ranks, for the recorded ones are not those of unshared noise. An oracle is the same drafter, but its
    draft probabilities say whether the target will take a candidate.
    """

    def __init__(self, traces: TraceSet, model: str, *, law: Law = Law.COUPLED, is_oracle: bool = False) -> None:
        super().__init__(traces)
        self._model = model
        self._law = law
        self._is_oracle = is_oracle
        self._key = int.from_bytes(sha256(model.encode()).digest()[:8], "big")
        self._scripts: dict[int, DrafterScript] = {}
        for trace in traces:
            if model not in trace.drafters:
                raise UsageError(f"Trace {trace.number} knows no drafter {model}.")

    def _choice(self, state: TraceState, candidates: int) -> Choice:
        if state.trace is None:
            return Choice(OFF_STREAM_TOKEN, math.inf)
        recorded = self.script(state.trace).choices
        if state.path == ON_STREAM and 0 <= state.position < len(recorded):
            choice = recorded[state.position]
            return Choice(choice.token, choice.margin, choice.candidates[:candidates])
        bits = mix64(hashed(state) ^ self._key)
        choice = recorded[bits % len(recorded)]
        # A stride below that part of the vocabulary keeps all candidates apart.
        first, stride = bits >> 16 & 0xFFFF, 1 + (bits >> 32) % (BASE // CANDIDATES - 1)
        drawn = [
            (state.trace.drawn_token(first + rank * stride), ORACLE_MISS if self._is_oracle else probability)
            for rank, (_, probability) in enumerate(choice.candidates)
        ]
        return Choice(drawn[0][0], choice.margin, tuple(drawn[:candidates]))

    def _nll(self, states: Sequence[TraceState]) -> float | None:
        losses = []
        for state in states:
            script = self.script(state.trace) if state.trace is not None else None
            if script is None:
                losses.append(0.0)
            elif state.position <= 0:
                losses.append(script.prompt_nll)
            elif state.path == ON_STREAM and state.position <= len(script.losses):
                losses.append(script.losses[state.position - 1])
            else:
                losses.append(script.losses[mix64(hashed(state) ^ self._key) % len(script.losses)])
        return math.fsum(losses) / len(losses) if losses else None

    def script(self, trace: Trace) -> "DrafterScript":
        """The answers of this drafter along a trace."""
        if trace.number not in self._scripts:
            record = trace.drafters[self._model]
            along = zip(*(array.tolist() for array in record.arrays()), strict=True)
            choices = tuple(
                self._recorded_choice(trace, position, tokens, probabilities, overlap)
                for position, (tokens, probabilities, _, overlap) in enumerate(along)
            )
            losses = tuple((-record.log_probability).tolist())
            self._scripts[trace.number] = DrafterScript(choices, losses, record.prompt_nll)
        return self._scripts[trace.number]

    def _recorded_choice(
        self, trace: Trace, position: int, tokens: list[int], probabilities: list[float], overlap: float
    ) -> Choice:
        truth = trace.stream[position]
        margin = math.log(probabilities[0] / probabilities[1]) if probabilities[1] else math.inf
        if self._law is Law.PUBLISHED:
            bits = mix64(mix64((self._key + trace.number * GAMMA) & MASK) + position & MASK)
            tokens = ranked(tokens, truth, is_first=(bits >> 11) * UNIT < overlap)
        if self._is_oracle:
            probabilities = [ORACLE_HIT if token == truth else ORACLE_MISS for token in tokens]
        return Choice(tokens[0], margin, tuple(zip(tokens, probabilities, strict=True)))


@dataclass(frozen=True, slots=True)
class DrafterScript:
    """The answers of one drafter along one trace: its choice before each token, and the loss of each token."""

    choices: tuple[Choice, ...]
    losses: tuple[float, ...]
    prompt_nll: float


def stream_token(trace: Trace, position: int) -> int:
    """The output token at a position; beyond the recorded stream one drawn by hash, never EOS."""
    if position < len(trace.stream):
        return trace.stream[position]
    return trace.drawn_token(mix64((trace.number + 1) * GAMMA + position & MASK))


def hashed(state: TraceState) -> int:
    """64 bits, different for each state of a known trace."""
    assert state.trace is not None
    return state.path or mix64((state.trace.number + 1) * GAMMA + 2 * state.position + 1 & MASK)


def ranked(tokens: Sequence[int], truth: int, *, is_first: bool) -> list[int]:
    """Candidates in their order, but with the true token first, or with another first; then it comes second."""
    others = [token for token in tokens if token != truth]
    if is_first:
        return [truth, *others][: len(tokens)]
    return [others[0], *([truth] * (truth in tokens)), *others[1:]] if tokens[0] == truth else list(tokens)
