"""A laboratory for each test that asks for one; skipped where none can be built."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.network.laboratory import Laboratory, what_is_missing

_missing = cache(what_is_missing)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    if reason := _missing():
        pytest.skip(reason)
    with Laboratory(tmp_path) as built:
        yield built
