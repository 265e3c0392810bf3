"""Which cases run in `make test`, which in `make check` as well, and which in `make soak` alone.

`make test` keeps the main path of every part. A test that takes a second and shows one more case of what a quick
one shows (another model, seed, key, lie or command) is `thorough`, as is whatever takes many seconds by its nature.
A case two steps off the main path, by two of its parameters or as a further case of a thorough test, is left to
`make soak`.
"""

from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import settings

_FURTHER: Final = "a further case"
THOROUGH: Final = pytest.mark.thorough(_FURTHER)


DEAR_PART: Final = 3


def dear_examples() -> settings:
    """Of a property whose every example is a whole swarm: a third of the examples of others, in each profile."""
    return settings(max_examples=settings().max_examples // DEAR_PART)


def quick_first(values: Iterable[Any], quick: int = 1, checked: int | None = None) -> list[Any]:
    """Cases for `parametrize`: the first `quick` of them on the main path, the others a step off it.

    From `checked` on they show no more of the same kind: they run in `make soak` alone.
    """
    return quick_rows(((value,) for value in values), quick, checked)


def quick_rows(rows: Iterable[tuple[Any, ...]], quick: int = 1, checked: int | None = None) -> list[Any]:
    """The same for a test of several parameters: a row has a value for each."""
    found = []
    for index, row in enumerate(rows):
        is_left = checked is not None and index >= checked
        mark = pytest.mark.soak if is_left else THOROUGH
        found.append(pytest.param(*row, marks=() if index < quick else mark))
    return found


def soak_rest(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Cases for `parametrize`: the first `kept` of them run always, the others in `make soak` alone."""
    return [
        value if index < kept else pytest.param(value, marks=pytest.mark.soak) for index, value in enumerate(values)
    ]


def leave_far_cases_to_soak(items: Iterable[pytest.Item]) -> None:
    """Mark what is two steps off the main path."""
    for item in items:
        marks = list(item.iter_markers("thorough"))
        steps = sum(_FURTHER in mark.args for mark in marks)
        if steps + (steps < len(marks)) > 1:
            item.add_marker(pytest.mark.soak)
