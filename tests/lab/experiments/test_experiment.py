"""A cell is one strategy on recorded prompts: the same wherever it runs, exact, and fair to a labelled rival."""

import pickle

import pytest

from cosine_lab.experiments.entrants import ENTRANTS
from cosine_lab.experiments.experiment import Cell, Prompts, in_processes, run_cell
from tests.lab.experiments.quick import silent

SHORT = {"rtt_ms": 20.0, "max_new_tokens": 12}
ONE = Prompts(count=1)


@pytest.mark.parametrize("strategy", ENTRANTS)
def test_every_entrant_generates_the_target_s_own_text(strategy: str) -> None:
    done = run_cell(Cell(strategy=strategy, choice=ENTRANTS[strategy].start, scenario=SHORT, prompts=ONE))
    assert done.checks == {"tokens": 12, "mismatches": 0, "violations": 0}


@pytest.mark.thorough
def test_a_cell_gives_the_same_in_another_process() -> None:
    cells = [Cell(scenario=SHORT, prompts=ONE), Cell(strategy="plain", scenario=SHORT, prompts=ONE)]
    assert pickle.loads(pickle.dumps(cells)) == cells
    here, there = (in_processes(run_cell, cells, processes=n, say=silent)[0] for n in (1, 2))
    assert (there.report.digest, there.seconds) == (here.report.digest, here.seconds)
