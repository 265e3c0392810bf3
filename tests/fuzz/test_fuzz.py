"""Strangers' bytes cause only our own errors: old findings, some new inputs, and many by coverage."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.fuzz.mutation import changed_bytes
from tests.fuzz.target import kept, regressions
from tests.fuzz.targets import TARGETS

QUICK: Final = 200
"""One of 200 runs of a target is made without coverage."""
CHECKED_PART: Final = 10
"""One of ten is in every check, guided by coverage; all of them take five minutes of a processor."""
SLOW: Final = ("constraint", "holes")
"""Targets whose inputs take a separate process or memory limit each."""
REGRESSIONS: Final = regressions()


# Strangers' numbers may overflow.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken_before_they_are_changed(name: str) -> None:
    assert any(TARGETS[name].accepts(seed) for seed in TARGETS[name].seeds())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in TARGETS]
)
def test_what_broke_something_once_does_so_no_more(name: str) -> None:
    for case, data in [*REGRESSIONS.items(), *((f"line {line}", data) for line, data in enumerate(kept(name), 1))]:
        try:
            TARGETS[name].accepts(data)
        except Exception as error:
            pytest.fail(f"{case}: {error!r}")


@pytest.mark.parametrize("name", TARGETS)
def test_only_our_own_errors_come_of_changed_inputs(name: str) -> None:
    target = TARGETS[name]
    starts = [*target.seeds(), *kept(name)]
    for number in range(target.runs // QUICK):
        seed = f"{name}/{number}"
        random = Random(seed)
        data = random.choice(starts)
        bytewise = partial(changed_bytes, random=random)
        if target.mutate is None or number % 3 == 0:
            data = bytewise(data, target.max_bytes)
        else:
            data = target.mutate(data, random, bytewise, target.max_bytes)
        try:
            target.accepts(data)
        except Exception as error:
            pytest.fail(f"seed {seed!r}, data {data.hex()}: {error!r}")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "part", [pytest.param(CHECKED_PART, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.soak)]
)
def test_only_our_own_errors_come_of_inputs_that_reach_ever_more_code(part: int, tmp_path: Path) -> None:
    """The same inputs in every run: numbers of runs bound it, not a clock."""
    pytest.importorskip("atheris")
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.fuzz", "--part", str(part), "--found", str(tmp_path)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr[-5000:]
