"""Which cases run in `make test`, and which in `make check` alone."""

from collections.abc import Iterable
from typing import Any, Final

import pytest

THOROUGH: Final = pytest.mark.thorough


def quick_first(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """Cases for `parametrize`: the first `quick` of them run in `make test`, the others in `make check` alone."""
    return [value if index < quick else pytest.param(value, marks=THOROUGH) for index, value in enumerate(values)]
