"""The contract of engines: one forward pass over several sequences, each a kept prefix and a tree of tokens.

*Trees.* A sequence is a prefix, which only grows, and a tree of named nodes below it. `forward` adds nodes, `keep`
moves a chain of them into the prefix and drops what does not descend from its end, `prune` drops nodes and what
descends from them. Names are the caller's; one is free again as soon as its node is kept or dropped.

*Pages.* Each token of a prefix or a tree takes a slot of a pool whose size never changes. Slots come in pages: a
page belongs to one sequence, or as part of a prefix to all of its scope that begin alike. Pages of released
prefixes stay cached and are evicted before anything is refused, so `free_tokens` counts them. Engines without a
model only count.

*A pass* feeds all rows or, if it raises, none: the sequences then stand as before it. Only bad logits fail a row
alone (`RowResult.error`), and that row's tokens are not fed. A choice depends on nothing but the tokens of its own
path, the request's sampling and the numerics: siblings, other rows, the order of passes and the place of pages
move the last digits of logits at most, which can decide a near-tie, and in deterministic mode not even those.

*What can never happen*: that a token of one scope is seen by another; that a node sees a token that is not on its
path; that a pool grows. `LocalProtocolError` says that the caller broke the rules: a sequence that is not open, a
name in use, a parent that is not alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cosine_protocol.errors import CosineError
from cosine_protocol.likelihoods import Likelihood
from cosine_protocol.request import Sampling

if TYPE_CHECKING:
    # It needs numpy, and the command line of the light client reads the names of engines.
    from cosine_node.engine.constraints.grammars import Grammars

PREFIX: Final = -1
"""The parent of a node that directly follows the kept prefix."""


class OutOfPages(CosineError):
    """The pool has no page left for a sequence; nothing was changed."""


class OutOfMemory(CosineError):
    """The device had no memory left for a pass; nothing was fed."""


class PassAbandoned(CosineError):
    """A pass was stopped between two layers because nobody wants its result any more; nothing was fed."""


class BadLogits(CosineError):
    """A pass gave NaN or infinite logits for a sequence: damaged weights or an overflow."""


class Activations(Protocol):
    """What a target's layers made of some tokens, as a draft head reads it; only engines look inside."""

    def __len__(self) -> int:
        """The number of tokens."""


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of one sequence to be fed in a pass.

    The caller names its nodes: `nodes[i]` is a non-negative name unused in the sequence's present tree, and
    `parents[i]` is `PREFIX`, an earlier name of this row, or a node fed in an earlier pass and still alive.
    Choices are returned for `tokens[scored_from:]`.
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
    activations: Activations | None = None
    """For a draft head: what its target made of the tokens before the row's first ones, as many as these."""
    followers: tuple[int | None, ...] = ()
    """What comes after each of the last tokens, whose likelihood is to be told; None for the choice there."""
    top: int = 0
    """The number of likeliest tokens to tell with each likelihood."""

    @classmethod
    def chain(cls, sequence: int, tokens: Sequence[int], *, scored_from: int = 0) -> "Row":
        """Tokens one after the other below the prefix, named by their number in the row."""
        nodes = tuple(range(len(tokens)))
        return cls(sequence, tuple(tokens), nodes, (PREFIX, *nodes[:-1]), scored_from)

    def part(self, start: int, stop: int) -> "Row":
        """Some of its tokens as a row of their own, without what is asked of them; those before are fed first."""
        return Row(self.sequence, self.tokens[start:stop], self.nodes[start:stop], self.parents[start:stop])

    @property
    def told_from(self) -> int:
        """The index of the first token after which likelihoods are told."""
        return len(self.tokens) - len(self.followers)

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
    """One row's outcome. `error` is set, and `choices` empty, if this row alone failed.

    It is `BadLogits`, or `GrammarTooComplex`. `likelihoods` has one for each of the row's `followers`.
    """

    choices: tuple[Choice, ...]
    nll: float | None = None
    error: CosineError | None = None
    likelihoods: tuple[Likelihood, ...] = ()


class Engine(Protocol):
    """A model with its KV pool. Not thread-safe: one caller at a time.

    A sequence is a kept prefix plus a tree of nodes fed since. Output position 0 is the token after
    `prompt_tokens` tokens; the keyed noise of a choice after a node at absolute index j (the first prompt token
    has index 0) is that of output position `j + 1 - prompt_tokens`. The repetition penalty of a choice sees the
    kept prefix and the node's own path; what shapes scores by the output sees of them what follows the prompt.
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
        """Tokens the pool can still take, those included that evicting cached prefixes would make room for."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of released sequences whose prefixes stay cached; `free_tokens` counts their pages as well."""

    @property
    def grammars(self) -> "Grammars | None":
        """The constraints that the engine applies where a sampling has one; None if it leaves them out."""

    @property
    def tells_likelihoods(self) -> bool:
        """True if rows may have followers: it has the scores of all tokens."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        """A new empty sequence; its number. Allocates no page yet.

        Sequences of one scope share prefixes (`reuse_prefix`), and theirs stay cached after `release` as long as
        nobody needs the room. Without a scope nothing is shared or cached.
        """

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Begin an empty sequence with what is known of `tokens`; the number of them that are its prefix now.

        A multiple of the page size, and less than `tokens`, so that there is one to feed; 0 where no sequence of
        the scope has begun alike. The sequence is as if it had been fed them and had kept them. Allocates nothing
        but what was cached, which `free_tokens` then counts no more. Raises `LocalProtocolError` if the sequence
        is not empty.
        """

    def reserve(self, sequence: int, tokens: int) -> None:
        """Make room for `tokens` more tokens in a sequence. Raises `OutOfPages`."""

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Feed all rows in one pass. At most one row per sequence. Reserves by itself; raises `OutOfPages`."""

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        """Append the nodes of `path` (a chain starting at `PREFIX`) to the prefix; drop what does not follow it.

        Nodes that descend from the end of the path stay alive under their names; its children now have the
        parent `PREFIX`. An empty path changes nothing.
        """

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        """Drop these nodes and all that descend from them. Unknown names are ignored."""

    def abandon(self) -> None:
        """Let the pass under way in another thread, if any, end soon with `PassAbandoned`. May come too late."""

    def release(self, sequence: int) -> None:
        """Forget a sequence and free its pages. With a scope its prefix stays cached while there is room."""


class EngineAround:
    """The base of engines around another one, which do as it does but for what subclasses say."""

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
