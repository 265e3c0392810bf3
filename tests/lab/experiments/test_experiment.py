"""A cell is one strategy on recorded prompts: the same wherever it runs, exact, and fair to a labelled rival."""

import pickle

import pytest

from cosine_lab.experiments import experiment
from cosine_lab.experiments.entrants import ENTRANTS, OURS, Entrant, RequestCase
from cosine_lab.experiments.experiment import (
    Cell,
    Prompts,
    best_drafters,
    in_processes,
    lookup_hits,
    run_cell,
)
from cosine_p2p.strategy.base import Action, DrafterStarted, Event
from tests.lab.experiments.quick import silent

SHORT = {"rtt_ms": 20.0, "max_new_tokens": 12}
ONE = Prompts(count=1)


@pytest.mark.parametrize("strategy", ENTRANTS)
def test_every_entrant_generates_the_target_s_own_text(strategy: str) -> None:
    done = run_cell(Cell(strategy=strategy, choice=ENTRANTS[strategy].start, scenario=SHORT, prompts=ONE))
    assert done.checks == {"tokens": 12, "mismatches": 0, "violations": 0}


@pytest.mark.parametrize("law", ["coupled", "published"])
def test_a_law_changes_the_drafts_and_never_the_text(law: str) -> None:
    cell = Cell(
        strategy="speculative",
        choice={"draft_tokens": 4, "drafter": "by-label", "law": law},
        scenario={**SHORT, "temperature": 0.8},
        prompts=Prompts(count=2),
    )
    assert run_cell(cell).checks["mismatches"] == 0


def test_a_cell_gives_the_same_in_another_process() -> None:
    cells = [Cell(scenario=SHORT, prompts=ONE), Cell(strategy="plain", scenario=SHORT, prompts=ONE)]
    assert pickle.loads(pickle.dumps(cells)) == cells
    here, there = (in_processes(run_cell, cells, processes=n, say=silent)[0] for n in (1, 2))
    assert (there.report.digest, there.seconds) == (here.report.digest, here.seconds)


def test_authors_by_label_are_the_drafters_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[RequestCase, dict[int, float]]] = []

    class Listener:
        """Plain decoding that notes how likely each drafter finds the prompt."""

        def __init__(self, likelihoods: dict[int, float]) -> None:
            self.likelihoods = likelihoods

        def on(self, event: Event, now_s: float) -> list[Action]:
            del now_s
            if isinstance(event, DrafterStarted):
                self.likelihoods[event.author] = event.prompt_nll
            return []

    class ListeningEntrant(Entrant):
        def build(self, root: bytes, choice: object, case: RequestCase) -> Listener:
            found.append((case, {}))
            return Listener(found[-1][1])

    listening = ListeningEntrant(kind=OURS.kind, strategy=Listener)
    monkeypatch.setattr(experiment, "entrant", lambda name: listening)
    run_cell(Cell(strategy=OURS.name, scenario=SHORT, prompts=Prompts(count=5)))
    assert len(found) == 5
    for case, likelihoods in found:
        ranked = best_drafters(case.trace.domain, 0.0)
        assert f"draft-{case.trace.domain}" in ranked[:2]
        named = dict(zip(ranked, case.authors, strict=True))
        assert {model: likelihoods[named[model]] for model in case.trace.drafters} == pytest.approx(
            {model: drafts.prompt_nll for model, drafts in case.trace.drafters.items()}, abs=1e-6
        )


def test_lookup_hits_what_a_text_repeats() -> None:
    assert lookup_hits([1, 2, 3, 4, 5, 6]) == 0
    assert lookup_hits([1, 2, 3, 1, 2, 3, 1]) == 3
