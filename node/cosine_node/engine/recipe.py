"""The parameters of a choice, without any library of tensors: samplers over several of them read the same ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cosine_node.engine.base import Row
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

COLDEST: Final = 1e-30
"""Smaller temperatures would underflow in float32; at this one all but exact ties is greedy already."""


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


def rows_by_recipe(queries: Sequence[Query]) -> dict[Recipe, list[int]]:
    """The numbers of the rows that share each recipe."""
    groups: dict[Recipe, list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault(Recipe.of(query.sampling), []).append(row)
    return groups


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
