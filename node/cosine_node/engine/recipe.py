"""The parameters of a choice, without any library of tensors: samplers over several of them read the same ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from cosine_node.engine.base import Choice, Row
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

COLDEST: Final = 1e-30
"""Smaller temperatures would underflow in float32; at this one all but exact ties is greedy already."""
NOTHING_KNOWN: Final = Choice(0, 0.0)
"""The choice of a drafter where filters leave only what its vocabulary lacks: no candidates, and no token meant."""


class Rows(Protocol):
    """Rows of logits in any library of tensors."""

    def __getitem__(self, rows: list[int], /) -> Self: ...


AnyRows = TypeVar("AnyRows", bound=Rows)


@dataclass(frozen=True, slots=True)
class Query:
    """The choice that is wanted of one row of logits: `candidates` tokens for output position `position`.

    `prefix` and `path` are the token ids the repetition penalty sees; rows of one sequence share `prefix`.
    """

    sampling: Sampling
    position: int
    candidates: int = 0
    prefix: Sequence[int] = ()
    path: Sequence[int] = ()


class Recipe(NamedTuple):
    """The sampling parameters that rows must share to be computed as one block."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float

    @classmethod
    def of(cls, sampling: Sampling) -> "Recipe":
        """The recipe of a request; at temperature 0 only the penalty counts."""
        if sampling.is_greedy:
            return cls(0.0, 0, 1.0, 0.0, sampling.repetition_penalty)
        return cls(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty
        )


def choose_by_recipe(
    logits: AnyRows,
    queries: Sequence[Query],
    choose_alike: Callable[[AnyRows, Sequence[Query], Recipe], Sequence[Choice | None]],
) -> list[Choice | None]:
    """One choice for each row of `logits`, in blocks of rows that share a recipe."""
    groups: dict[Recipe, list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault(Recipe.of(query.sampling), []).append(row)
    choices: list[Choice | None] = [None] * len(queries)
    for recipe, rows in groups.items():
        block = logits if len(rows) == len(queries) else logits[rows]
        chosen = choose_alike(block, [queries[row] for row in rows], recipe)
        for row, choice in zip(rows, chosen, strict=True):
            choices[row] = choice
    return choices


def row_queries(tree: SequenceTree, row: Row) -> list[Query]:
    """The query for each scored node of a row that is in its tree."""
    queries = []
    for name in row.nodes[row.scored_from :]:
        position = tree.nodes[name].index + 1 - tree.prompt_tokens
        query = Query(tree.sampling, position, row.candidates)
        if tree.sampling.repetition_penalty != 1:
            path = [node.token for node in tree.path(name)]
            query = Query(tree.sampling, position, row.candidates, tree.tokens, path)
        queries.append(query)
    return queries
