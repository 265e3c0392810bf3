"""What all tests share."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_other_modules() -> None:
    """What another module left behind must not be found, and logged, while this one watches the log."""
    gc.collect()
