"""Engines that replay acceptance traces: the target and its drafters as recorded, in microseconds a pass."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from cosine_node.engine.base import PREFIX, Choice, Row, RowResult
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.tree import SequenceTree
from cosine_node.simulation.traces import CANDIDATES, DIGITS, VOCAB_TOKENS, Trace, TraceSet
from cosine_protocol.errors import UsageError
from cosine_protocol.noise import GAMMA, MASK, mix64
from cosine_protocol.request import Sampling

OFF_STREAM_TOKEN: Final = 0
"""What the target answers where no stream says better."""
NEAR_TIE_MARGIN: Final = 5e-5
ORACLE_HIT: Final = 1.0
ORACLE_MISS: Final = 1e-6
ON_STREAM: Final = 0
UNIT: Final = 2.0**-53


class Law(Enum):
    """How a drafter's first candidate comes to be the target's token."""

    COUPLED = "coupled"
    """As recorded, with shared noise (DESIGN idea I)."""
    PUBLISHED = "published"
    """With probability 1 - TV(p, q), as speculative sampling accepts (Leviathan et al. 2023, theorem 3.5)."""


class TraceState(NamedTuple):
    """Where a sequence stands after a token.

    `position` is the output position of what follows, below 0 inside the prompt. `trace` is None while the prompt's
    digits are read, and `path` the number read so far; later it is `ON_STREAM` or a hash of the way off the stream.
    """

    trace: Trace | None
    position: int
    path: int


class TraceEngine(PagedEngine, ABC):
    """What the engines over traces share: `cosine_node.engine.base.Engine`, contract checks included.

    A sequence must begin with the stand-in prompt of one of the traces; a pass raises `UsageError`, and feeds
    nothing, if it does not. Whatever the sampling parameters, the answers are those recorded.
    """

    def __init__(self, traces: TraceSet, *, context_tokens: int = VOCAB_TOKENS, pool_tokens: int = 65_536) -> None:
        super().__init__(
            PagePool(tokens=pool_tokens),
            vocab_tokens=traces.vocab_tokens,
            context_tokens=context_tokens,
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
        """One pass. Raises `LocalProtocolError`, `OutOfPages` or `UsageError`; nothing is fed then."""
        trees = self.feed(rows)
        try:
            reached = [self._follow(tree, row) for tree, row in zip(trees, rows, strict=True)]
        except UsageError:
            self.unfeed(rows)
            raise
        self.passes += bool(rows)
        return [self._result(row, states) for row, states in zip(rows, reached, strict=True)]

    def _follow(self, tree: SequenceTree, row: Row) -> list[TraceState]:
        """The state of each node of a fed row."""
        reached = []
        for name, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            state = self._step(self._before(tree, parent), token, tree.prompt_tokens)
            self._states[tree.nodes[name].slot] = state
            reached.append(state)
        return reached

    def _before(self, tree: SequenceTree, parent: int) -> TraceState:
        if parent != PREFIX:
            return self._states[tree.nodes[parent].slot]
        if tree.slots:
            return self._states[tree.slots[-1]]
        return TraceState(None, -tree.prompt_tokens, 0)

    def _step(self, before: TraceState, token: int, prompt_tokens: int) -> TraceState:
        trace, position = before.trace, before.position + 1
        if trace is None:
            return self._spell(before, token, prompt_tokens)
        if position <= 0 or (before.path == ON_STREAM and token == stream_token(trace, before.position)):
            return TraceState(trace, position, ON_STREAM)
        return TraceState(trace, position, mix64((hashed(before) + token * GAMMA) & MASK) or 1)

    def _spell(self, before: TraceState, token: int, prompt_tokens: int) -> TraceState:
        digit = before.position + prompt_tokens
        number = before.path + token * VOCAB_TOKENS**digit
        if digit + 1 < min(DIGITS, prompt_tokens):
            return TraceState(None, before.position + 1, number)
        trace = self._traces.numbered(number)
        if trace.prompt_tokens != prompt_tokens:
            raise UsageError(f"The prompt of trace {number} has {trace.prompt_tokens} tokens, not {prompt_tokens}.")
        return TraceState(trace, before.position + 1, ON_STREAM)

    def _result(self, row: Row, states: Sequence[TraceState]) -> RowResult:
        choices = tuple(self._choice(state, row.candidates) for state in states[row.scored_from :])
        return RowResult(choices=choices, nll=self._nll(states[1:]) if row.wants_nll else None)

    @abstractmethod
    def _choice(self, state: TraceState, candidates: int) -> Choice: ...

    @abstractmethod
    def _nll(self, states: Sequence[TraceState]) -> float | None:
        """The mean negative log-likelihood of the tokens that led to these states; None where none is known."""


class TraceTarget(TraceEngine):
    """The target: on a stream it says what comes next, elsewhere `OFF_STREAM_TOKEN`.

    The margin is infinite, or below 1e-4 where the trace had a near-tie. Beyond a recorded stream it goes on with
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

    On a stream it gives the recorded candidates. Off it, and beyond its end, it gives the claims it made somewhere
    else in the trace, with other tokens, all drawn by a hash of the path: below a wrong token the confidence has
    the shape it had in that trace. Under `Law.PUBLISHED` the tokens change ranks and the claims stay with the
    ranks, for the recorded claims are not those of unshared noise. An oracle is the same drafter told, once a
    candidate stands, whether the target will take it.
    """

    def __init__(
        self,
        traces: TraceSet,
        model: str,
        *,
        law: Law = Law.COUPLED,
        is_oracle: bool = False,
        context_tokens: int = VOCAB_TOKENS,
        pool_tokens: int = 65_536,
    ) -> None:
        super().__init__(traces, context_tokens=context_tokens, pool_tokens=pool_tokens)
        self._model = model
        self._law = law
        self._is_oracle = is_oracle
        self._key = int.from_bytes(sha256(model.encode()).digest()[:8], "big")
        self._scripts: dict[int, _Script] = {}
        for trace in traces:
            if model not in trace.drafters:
                raise UsageError(f"Trace {trace.number} knows no drafter {model}.")

    def _choice(self, state: TraceState, candidates: int) -> Choice:
        if state.trace is None:
            return Choice(OFF_STREAM_TOKEN, math.inf)
        script = self._script(state.trace)
        if state.path == ON_STREAM and 0 <= state.position < len(script.choices):
            choice = script.choices[state.position]
        else:
            choice = self._elsewhere(state, script)
        return Choice(choice.token, choice.margin, choice.candidates[:candidates])

    def _elsewhere(self, state: TraceState, script: "_Script") -> Choice:
        bits = mix64(hashed(state) ^ self._key)
        choice = script.choices[bits % len(script.choices)]
        # A stride below that share of the vocabulary keeps all candidates apart.
        first, stride = bits >> 16 & 0xFFFF, 1 + (bits >> 32) % (VOCAB_TOKENS // CANDIDATES - 1)
        tokens = [1 + (first + rank * stride) % (VOCAB_TOKENS - 1) for rank in range(len(choice.candidates))]
        claims = [ORACLE_MISS if self._is_oracle else claim for _, claim in choice.candidates]
        return Choice(tokens[0], choice.margin, tuple(zip(tokens, claims, strict=True)))

    def _nll(self, states: Sequence[TraceState]) -> float | None:
        losses = [self._loss(state) for state in states]
        return math.fsum(losses) / len(losses) if losses else None

    def _loss(self, state: TraceState) -> float:
        if state.trace is None:
            return 0.0
        script = self._script(state.trace)
        if state.position <= 0:
            return script.prompt_nll
        if state.path == ON_STREAM and state.position <= len(script.losses):
            return script.losses[state.position - 1]
        return script.losses[mix64(hashed(state) ^ self._key) % len(script.losses)]

    def _script(self, trace: Trace) -> "_Script":
        script = self._scripts.get(trace.number)
        if script is None:
            script = self._scripts[trace.number] = self._written(trace)
        return script

    def _written(self, trace: Trace) -> "_Script":
        record = trace.drafters[self._model]
        along = zip(*(array.tolist() for array in record.arrays()), strict=True)
        choices = tuple(
            self._recorded(trace, position, tokens, claims, overlap)
            for position, (tokens, claims, _, overlap) in enumerate(along)
        )
        return _Script(choices, tuple((-record.log_probability).tolist()), record.prompt_nll)

    def _recorded(
        self, trace: Trace, position: int, tokens: list[int], claims: list[float], overlap: float
    ) -> Choice:
        truth = trace.stream[position]
        margin = math.log(claims[0] / claims[1]) if claims[1] else math.inf
        if self._law is Law.PUBLISHED:
            tokens = ranked(tokens, truth, is_first=self._uniform(trace.number, position) < overlap)
        if self._is_oracle:
            claims = [ORACLE_HIT if token == truth else ORACLE_MISS for token in tokens]
        return Choice(tokens[0], margin, tuple(zip(tokens, claims, strict=True)))

    def _uniform(self, number: int, position: int) -> float:
        return (mix64(mix64((self._key + number * GAMMA) & MASK) + position & MASK) >> 11) * UNIT


@dataclass(frozen=True, slots=True)
class _Script:
    """One drafter along one trace, ready to be read: what it says before each token, and the loss of each token."""

    choices: tuple[Choice, ...]
    losses: tuple[float, ...]
    prompt_nll: float


def stream_token(trace: Trace, position: int) -> int:
    """The output token at a position; beyond the recorded stream one drawn by hash, never EOS."""
    if position < len(trace.stream):
        return trace.stream[position]
    return 1 + mix64((trace.number + 1) * GAMMA + position & MASK) % (VOCAB_TOKENS - 1)


def hashed(state: TraceState) -> int:
    """64 bits that tell the states of a known trace apart."""
    assert state.trace is not None
    return state.path or mix64((state.trace.number + 1) * GAMMA + 2 * state.position + 1 & MASK)


def ranked(tokens: Sequence[int], truth: int, *, is_first: bool) -> list[int]:
    """Candidates in their order, but with the true token first, or with another first; then it comes second."""
    others = [token for token in tokens if token != truth]
    if is_first:
        return [truth, *others][: len(tokens)]
    return [others[0], *([truth] * (truth in tokens)), *others[1:]] if tokens[0] == truth else list(tokens)
