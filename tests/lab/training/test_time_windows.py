"""A request is timed whose drafters see the end of its prompt, with what they give after that alone."""

from dataclasses import replace

import pytest

from cosine_lab.experiments.experiment import TUNE_SPLIT, run_cell
from cosine_lab.simulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.traces import CANDIDATES, Trace, TraceSet
from cosine_lab.training.record_smol_traces import LONG
from cosine_lab.training.time_windows import WindowedWorkload, after_window, cells_of, main, marked, plan_of
from cosine_node.zoo.family import Family

KNOWN = TraceSet.load_shipped(Family.SMOL)
WINDOW = 64


def passage() -> Trace:
    """The first recorded text over a passage."""
    return KNOWN.select(split=TUNE_SPLIT, temperature=0.0, domains=(LONG,))[0]


def test_the_number_of_a_trace_stands_where_the_window_begins_unless_that_is_the_prompt() -> None:
    trace = passage()
    prompt, plain = marked(trace, WINDOW).prompt(), trace.prompt()
    assert prompt[-WINDOW : -WINDOW + 2] == plain[:2]
    assert (prompt[:-WINDOW], prompt[-WINDOW + 2 :]) == (plain[:-WINDOW], plain[-WINDOW + 2 :])
    assert marked(trace, trace.prompt_tokens) is trace


def test_drafters_are_asked_again_along_the_text_with_the_window_alone() -> None:
    trace = passage().shortened(3)
    engine = ScriptedEngine(vocab_tokens=KNOWN.vocab_tokens)
    shown = after_window(trace, dict.fromkeys(trace.drafters, engine), 8)
    assert (shown.number, shown.stream) == (trace.number, trace.stream)
    assert (shown.prompt_tokens, shown.asked) == (8, trace.asked[-8:])
    tail = (*trace.asked, *trace.stream)[-2 - len(trace.stream) : -2]
    logits = engine.logits_after(tail)
    for drafter in shown.drafters.values():
        assert drafter.candidate_tokens.shape == (3, CANDIDATES)
        assert drafter.candidate_tokens[1, 0] == max(range(len(logits)), key=logits.__getitem__)


def test_drafters_that_know_less_cost_time_and_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = passage()
    wrong = {
        name: replace(drafter, candidate_tokens=drafter.candidate_tokens[::-1].copy())
        for name, drafter in trace.drafters.items()
    }
    shown = replace(trace, prompt_tokens=WINDOW, asked=trace.asked[-WINDOW:], drafters=wrong)
    monkeypatch.setattr(WindowedWorkload, "shown", {trace.number: shown})
    monkeypatch.setattr(WindowedWorkload, "window_tokens", WINDOW)
    place = {"kind": LONG, "home": "", "rtt_ms": 20.0, "temperature": 0.0, "max_new_tokens": 24}
    seconds = []
    for window_tokens in (0, WINDOW):
        (cell,) = cells_of(plan_of(["windows"]), place, prompt_window_tokens=window_tokens)
        prompts = replace(cell.prompts, count=1)
        done = run_cell(replace(cell, prompts=prompts, workload=WindowedWorkload))
        assert not done.checks["mismatches"] and not done.checks["violations"]
        seconds.append(done.total_s)
    assert seconds[0] < seconds[1]


def test_what_is_not_known_cannot_be_timed() -> None:
    with pytest.raises(SystemExit):
        main(["everything"])
