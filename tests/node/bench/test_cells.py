"""A cell is one strategy on recorded prompts: the same wherever it runs, exact, and fair to a labelled rival."""

import pickle

import pytest

from cosine_node.bench import cells
from cosine_node.bench.cells import (
    DOMAINS,
    Cell,
    CellResult,
    best_drafters,
    in_processes,
    lookup_hits,
    run_cell,
    run_cells,
)
from cosine_node.bench.entrants import ENTRANTS, Case, Choice, Entrant
from cosine_node.simulation.traces import TraceSet
from cosine_p2p.strategies.base import Action, DrafterStarted, Event, Strategy
from cosine_protocol.errors import UsageError

SHORT = {"rtt_ms": 20.0, "max_new_tokens": 12}


def silent(sentence: str) -> None:
    del sentence


def result(**seconds: float) -> CellResult:
    return CellResult(
        seconds={int(number[1:]): value for number, value in seconds.items()},
        tokens=10,
        rounds=4,
        drafted=8,
        accepted=6,
        busy_s=2.0,
        bytes_per_token=1.0,
        mismatches=0,
        violations=(),
        digest="",
        wall_s=0.0,
    )


def test_a_speedup_is_a_ratio_of_total_times_over_the_prompts_both_have() -> None:
    plain = result(p1=4.0, p2=6.0, p3=100.0)
    fast = result(p1=1.0, p2=4.0)
    assert fast.speedup_over(plain) == 2.0
    assert fast.worst_over(plain) == 1.5
    assert fast.busy_s_per_token == 0.2
    assert fast.accepted_per_round == 1.5


@pytest.mark.parametrize("strategy", ENTRANTS)
def test_every_entrant_generates_the_target_s_own_text(strategy: str) -> None:
    done = run_cell(Cell(strategy=strategy, choice=ENTRANTS[strategy].start, scenario=SHORT, prompts=1))
    assert (done.tokens, done.mismatches, done.violations) == (12, 0, ())


@pytest.mark.parametrize("law", ["coupled", "published"])
def test_a_law_changes_the_drafts_and_never_the_text(law: str) -> None:
    cell = Cell(
        strategy="speculative",
        choice={"draft_tokens": 4, "drafter": "by-label", "law": law},
        scenario={**SHORT, "temperature": 0.8},
        prompts=2,
    )
    assert run_cell(cell).mismatches == 0


def test_the_prompts_are_the_first_of_the_split_with_the_domains_taking_turns() -> None:
    chosen = TraceSet.load_shipped().select(split="tune", temperature=0.0)[:3]
    done = run_cell(Cell(strategy="plain", scenario=SHORT, split="tune", prompts=3))
    assert list(done.seconds) == [trace.number for trace in chosen]


def test_a_cell_gives_the_same_in_another_process() -> None:
    cell = Cell(strategy="cosine", scenario=SHORT, prompts=1)
    assert pickle.loads(pickle.dumps(cell)) == cell
    here = run_cell(cell)
    there = run_cells([cell, Cell(strategy="plain", scenario=SHORT, prompts=1)], processes=2, say=silent)[0]
    assert (there.digest, there.seconds, there.busy_s) == (here.digest, here.seconds, here.busy_s)


def test_results_come_in_the_order_of_the_items_and_each_is_told() -> None:
    told: list[str] = []
    assert in_processes(len, ["aaa", "b", "cc"], processes=1, say=told.append) == [3, 1, 2]
    assert told == ["1 of 3: aaa", "2 of 3: b", "3 of 3: cc"]


def test_authors_by_label_are_the_drafters_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Case, dict[int, float]]] = []

    class Listener:
        """Plain decoding that notes what drafters say of the prompt."""

        def __init__(self, case: Case) -> None:
            self.said: dict[int, float] = {}
            heard.append((case, self.said))

        def on(self, event: Event, now_s: float) -> list[Action]:
            del now_s
            if isinstance(event, DrafterStarted):
                self.said[event.author] = event.prompt_nll
            return []

    def build(root: bytes, choice: Choice, case: Case) -> Strategy:
        del root, choice
        return Listener(case)

    listener = Entrant(name="listener", build=build)
    monkeypatch.setattr(cells, "entrant", lambda name: listener)
    run_cell(Cell(strategy="listener", scenario=SHORT, prompts=5))
    assert len(heard) == 5
    for case, said in heard:
        ranked = best_drafters(case.trace.domain, 0.0)
        assert f"draft-{case.trace.domain}" in ranked[:2]
        named = dict(zip(ranked, case.authors, strict=True))
        assert {model: said[named[model]] for model in case.trace.drafters} == pytest.approx(
            {model: drafts.prompt_nll for model, drafts in case.trace.drafters.items()}, abs=1e-6
        )


def test_the_best_drafters_of_a_domain_are_ranked_by_what_they_hit_in_tuning() -> None:
    ranked = best_drafters("math", 0.8)
    assert sorted(ranked) == sorted(f"draft-{domain}" for domain in DOMAINS)


def test_lookup_hits_what_a_text_repeats() -> None:
    assert lookup_hits([1, 2, 3, 4, 5, 6]) == 0
    assert lookup_hits([1, 2, 3, 1, 2, 3, 1]) == 3


def test_there_is_nothing_to_run_at_a_temperature_that_was_not_recorded() -> None:
    with pytest.raises(UsageError, match="temperature 3"):
        run_cell(Cell(strategy="plain", scenario={"temperature": 3.0}))


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(UsageError, match="'wizardry'"):
        run_cell(Cell(strategy="wizardry"))
