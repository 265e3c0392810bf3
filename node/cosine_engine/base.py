"""The contract of engines: one forward pass over several sequences, each a kept prefix and a tree of tokens.

*Trees.* A sequence is a prefix, which only grows, and a tree of named nodes below it. `forward` adds nodes, `keep`
moves a chain of them into the prefix and drops all nodes that do not descend from its end, `prune` drops nodes and
their descendants. Names are the caller's; one is free again as soon as its node is kept or dropped.

*Pages.* Each token of a prefix or a tree takes a slot of a pool of fixed size. Slots are grouped in pages: a page
belongs to one sequence, or as part of a prefix to all sequences of its scope with the same beginning. Pages of
released prefixes stay cached and are evicted before a request is refused, so `free_tokens` counts them. Engines
without a model only count.

*A pass* feeds all rows or, if it raises, none: the sequences then stay as before it. Only bad logits fail a single
row (`RowResult.error`), and that row's tokens are not fed. A choice depends only on the tokens of its path, the
request's sampling and the numerics: siblings, other rows, the order of passes and the place of pages change at most
the last digits of logits, which can decide a near-tie, and in deterministic mode not even those.

*Invariants*: no scope sees tokens of another; no node sees a token outside its path; pools never grow.
`LocalProtocolError` means that the caller broke the rules: a sequence that is not open, a name in use, a parent
that is not alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cosine_protocol.errors import CosineError
from cosine_protocol.request import Sampling
from cosine_protocol.verify import Likelihood

if TYPE_CHECKING:
    # It needs numpy, and the command line of the light client reads the names of engines.
    from cosine_engine.constraints.grammars import Grammars

PREFIX: Final = -1
"""The parent of a node that directly follows the kept prefix."""


class OutOfPages(CosineError):
    """The pool has no page left for a sequence; nothing was changed."""


class OutOfMemory(CosineError):
    """The device had no memory left for a pass; nothing was fed."""


class PassAbandoned(CosineError):
    """A pass was stopped between two layers because its result is not needed any more; nothing was fed."""


class BadLogits(CosineError):
    """A pass gave NaN or infinite logits for a sequence: damaged weights or an overflow."""


class TargetActivations(Protocol):
    """The activations of a target's layers for some tokens, which a draft head reads; opaque except to engines."""

    def __len__(self) -> int:
        """Return the number of tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence to be fed in a pass.

    The caller names its nodes: `nodes[i]` is a non-negative name unused in the sequence's present tree, and
    `parents[i]` is `PREFIX`, an earlier name of this row, or a node fed in an earlier pass and still alive. Choices
    are returned for `tokens[scored_from:]`.
    """

    sequence: int
    tokens: tuple[int, ...]
    nodes: tuple[int, ...]
    parents: tuple[int, ...]
    scored_from: int = 0
    candidates: int = 0
    """The number of (token, probability) pairs to return with each choice."""
    wants_nll: bool = False
    """True to return the mean negative log-likelihood of the row's tokens (a chain), given their prefix."""
    activations: TargetActivations | None = None
    """For a draft head: the target's activations of the tokens before the row's first ones, as many as these."""
    followers: tuple[int | None, ...] = ()
    """The tokens after the last ones, whose likelihoods are reported; None for the choice there."""
    top: int = 0
    """The number of likeliest tokens reported with each likelihood."""

    @classmethod
    def chain(cls, sequence: int, tokens: Sequence[int], *, scored_from: int = 0) -> "Row":
        """Return a row of consecutive tokens below the prefix, named by their number in the row."""
        nodes = tuple(range(len(tokens)))
        return cls(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), scored_from)

    def part(self, start: int, stop: int) -> "Row":
        """Return a row of some of its tokens, without outputs; the tokens before are fed first."""
        return Row(self.sequence, self.tokens[start:stop], self.nodes[start:stop], self.parents[start:stop])

    @property
    def reported_from(self) -> int:
        """The index of the first token after which likelihoods are reported."""
        return len(self.tokens) - len(self.followers)

    @property
    def is_scored(self) -> bool:
        """True if choices are returned."""
        return self.scored_from < len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True if each token follows the one before it."""
        return self.parents[1:] == self.nodes[:-1]


@dataclass(frozen=True, slots=True)
class Choice:
    """The model's choice after one node.

    `token` is the keyed choice (docs/design.md, "The output is a function of the request"), `margin` the distance
    between the two best scores it was chosen by. `candidates` are tokens in falling order of that score with the
    node's own estimate, 0..1, that a target sharing the noise chooses them.
    """

    token: int
    margin: float
    candidates: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row's outcome. `error` is set, and `choices` empty, if only this row failed.

    It is `BadLogits`, or `GrammarTooComplex`. `likelihoods` has one for each of the row's `followers`.
    """

    choices: tuple[Choice, ...]
    nll: float | None = None
    error: CosineError | None = None
    likelihoods: tuple[Likelihood, ...] = ()


class Engine(Protocol):
    """A model with its KV pool. Not thread-safe: one caller at a time.

    A sequence is a kept prefix plus a tree of nodes fed since. Output position 0 is the token after `prompt_tokens`
    tokens; the keyed noise of a choice after a node at absolute index j (the first prompt token has index 0) is
    that of output position `j + 1 - prompt_tokens`. The repetition penalty of a choice sees the kept prefix and the
    node's path; the shaping of scores by the output sees only the part after the prompt.
    """

    @property
    def vocab_tokens(self) -> int: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def numerics(self) -> str:
        """The dtype and quantisation, for example `float32`: engines of equal numerics agree on near-ties."""

    @property
    def free_tokens(self) -> int:
        """Tokens that the pool can still take, including the room of cached prefixes."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of released sequences whose prefixes stay cached; `free_tokens` counts their pages as well."""

    @property
    def grammars(self) -> "Grammars | None":
        """The constraints that the engine applies to samplings with one; None if it ignores them."""

    @property
    def tells_likelihoods(self) -> bool:
        """True if rows may have followers, since the engine has the scores of all tokens."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        """Open a new empty sequence, without any page, and return its number.

        Sequences of one scope share prefixes (`reuse_prefix`), and theirs stay cached after `release` until the
        room is needed. Without a scope nothing is shared or cached.
        """

    def number_from(self, first: int) -> None:
        """Give the next sequence a number of at least `first`."""

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Begin an empty sequence with the known beginning of `tokens`; return its number of tokens.

        It is a multiple of the page size, and less than `tokens`, so that there is one to feed; 0 if no sequence of
        the scope has the same beginning. The sequence is then as if it had fed and kept them. Only cached pages are
        allocated, which `free_tokens` then does not count. Raises `LocalProtocolError` for a non-empty sequence.
        """

    def reserve(self, sequence: int, tokens: int) -> None:
        """Make room for `tokens` more tokens in a sequence. Raises `OutOfPages`."""

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Feed all rows in one pass, at most one per sequence. Reserves room itself; raises `OutOfPages`."""

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        """Append the nodes of `path` (a chain starting at `PREFIX`) to the prefix; drop all that do not follow it.

        Nodes that descend from the end of the path stay alive under their names; its children now have the parent
        `PREFIX`. An empty path changes nothing.
        """

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        """Drop these nodes and their descendants. Unknown names are ignored."""

    def abandon(self) -> None:
        """Make the running pass in another thread, if any, end soon with `PassAbandoned`. It may come too late."""

    def release(self, sequence: int) -> None:
        """Release a sequence and its pages. With a scope its prefix stays cached while there is room."""


class EngineAround:
    """The base of engines around another one, which delegate everything that subclasses do not override."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    @property
    def vocab_tokens(self) -> int:
        return self._inner.vocab_tokens

    @property
    def context_tokens(self) -> int:
        return self._inner.context_tokens

    @property
    def numerics(self) -> str:
        return self._inner.numerics

    @property
    def free_tokens(self) -> int:
        return self._inner.free_tokens

    @property
    def cached_tokens(self) -> int:
        return self._inner.cached_tokens

    @property
    def grammars(self) -> "Grammars | None":
        return self._inner.grammars

    @property
    def tells_likelihoods(self) -> bool:
        return self._inner.tells_likelihoods

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        return self._inner.open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def number_from(self, first: int) -> None:
        self._inner.number_from(first)

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        return self._inner.reuse_prefix(sequence, tokens)

    def reserve(self, sequence: int, tokens: int) -> None:
        self._inner.reserve(sequence, tokens)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        return self._inner.forward(rows)

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._inner.keep(sequence, path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._inner.prune(sequence, nodes)

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        self._inner.release(sequence)
