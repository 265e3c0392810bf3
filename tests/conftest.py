"""Settings of all tests: how many examples property tests draw, and what is cleared between modules."""

import gc
import os
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.scheduling import SwarmsInTurn
from tests.thoroughness import leave_far_cases_to_soak

QUICK_EXAMPLES: Final = 20
CHECK_EXAMPLES: Final = 50
"""The examples of a property test, the same in every run; `make explore` draws a thousand others."""

# Before PyTorch is imported, and for the processes that tests start. Nodes compute small models in one thread, too;
# two workers with two threads each on two processors wait for each other, and take the processors to wait.
os.environ["OMP_NUM_THREADS"] = "1"
# Nothing is looked for, or found by others, in the network of this machine.
os.environ["COSINE_LAN"] = "0"

# Seconds are no property of the code: a busy machine would fail tests that are right. Nor are the examples drawn:
# `make explore` draws others.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=CHECK_EXAMPLES)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=QUICK_EXAMPLES)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SwarmsInTurn | None:
    return SwarmsInTurn(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before `-m` chooses among them."""
    leave_far_cases_to_soak(items)


@pytest.fixture(autouse=True, scope="module")
def _no_garbage_of_other_modules() -> None:
    """What another module left behind must not be found, and logged, while this one watches the log.

    What it left that is no garbage, such as modules it imported, stays. It is not looked through again: with
    PyTorch imported a collection takes a second.
    """
    gc.collect()
    gc.freeze()
