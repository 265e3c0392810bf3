"""What a drafter gives that sees the end of a prompt alone, by the drafter that copies."""

from cosine_lab.simulation.traces import Trace, TraceSet
from cosine_lab.simulation.workload import LOOKUP, lookup_engine
from cosine_lab.training.measure_windows import SHORT, hits, measure
from cosine_lab.training.record_smol_traces import LONG
from cosine_node.zoo.family import Family

KNOWN = TraceSet.load_shipped(Family.SMOL)


def passage() -> Trace:
    """The recorded text over the shortest passage."""
    return min(KNOWN.select(temperature=0.0, domains=(LONG,)), key=lambda trace: trace.prompt_tokens)


def test_a_window_as_long_as_the_prompt_is_the_whole_prompt() -> None:
    trace = passage()
    engine = lookup_engine(KNOWN.vocab_tokens)
    whole = hits(engine, trace, trace.prompt_tokens)
    assert hits(engine, trace, 2 * trace.prompt_tokens) == whole
    assert 0 < whole["first"] <= whole["among_8"] <= whole["tokens"] == len(trace.stream)


def test_rows_compare_the_same_prompts_and_leave_out_the_short_ones() -> None:
    long, short = passage(), KNOWN.select(temperature=0.0, domains=("code",))[0]
    engines = {LOOKUP: lookup_engine(KNOWN.vocab_tokens)}
    rows = list(measure([long, short], engines, (8, 256, 10_000)))
    assert [(row.kind, row.window) for row in rows] == [(LONG, 8), (LONG, 256), (SHORT, 8)]
    for row, trace in zip(rows, (long, long, short), strict=True):
        assert (row.prompts, row.tokens) == (1, len(trace.stream))
        assert row.whole_first == hits(engines[LOOKUP], trace, trace.prompt_tokens)["first"]
    # Copying knows no words that it has not read.
    assert rows[0].first < rows[0].whole_first
