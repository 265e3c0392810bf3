"""A cell is one strategy on recorded prompts: the same wherever it runs, exact, and fair to a labelled rival."""

import pytest

from cosine_lab.experiments.entrants import ENTRANTS
from cosine_lab.experiments.experiment import Cell, Prompts, run_cell

SHORT = {"rtt_ms": 20.0, "max_new_tokens": 12}
ONE = Prompts(count=1)


@pytest.mark.parametrize("strategy", ENTRANTS)
def test_every_entrant_generates_the_target_s_own_text(strategy: str) -> None:
    done = run_cell(Cell(strategy=strategy, choice=ENTRANTS[strategy].start, scenario=SHORT, prompts=ONE))
    assert done.checks == {"tokens": 12, "mismatches": 0, "violations": 0}
