"""What all tests share."""

import gc

import pytest
from hypothesis import settings

# Seconds are no property of the code: a busy machine would fail tests that are right. Nor are the examples drawn:
# `make explore` draws others.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_other_modules() -> None:
    """What another module left behind must not be found, and logged, while this one watches the log."""
    gc.collect()
