"""Which cases run in `make test`, and which in `make check` alone.

`make test` keeps the main path of every part. A test that takes a second and shows one more case of what a quick
one shows (another model, seed, key, lie or command) is `thorough`, as is whatever takes many seconds by its nature.
"""

from collections.abc import Iterable
from typing import Any, Final

import pytest

THOROUGH: Final = pytest.mark.thorough


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Cases for `parametrize`: the first `quick` of them run in `make test`, the others in `make check` alone."""
    return [value if index < quick else pytest.param(value, marks=THOROUGH) for index, value in enumerate(values)]


def soak_rest(values: Iterable[Any], kept: int = 1) -> list[Any]:
    """Cases for `parametrize`: the first `kept` of them run always, the others in `make soak` alone."""
    return [
        value if index < kept else pytest.param(value, marks=pytest.mark.soak) for index, value in enumerate(values)
    ]
