"""Parts of our strategy bring what their docstrings say, in the condition that is named there."""

from cosine_node.bench.entrants import LOOKS_UP
from cosine_node.bench.experiment import TUNE_SPLIT, Cell, Prompts, run_cell
from tests.thoroughness import THOROUGH

THREE_LIARS = ",".join(["liar=certain_garbage"] * 3)


@THOROUGH
def test_predrafted_corrections_bring_three_percent_beside_three_liars() -> None:
    seconds = {
        predrafts: run_cell(
            Cell(
                choice={"policy": LOOKS_UP, "predrafts": predrafts},
                scenario={"rtt_ms": 20.0, "faults": THREE_LIARS},
                prompts=Prompts(split=TUNE_SPLIT, count=4),
            )
        ).total_s
        for predrafts in (True, False)
    }
    assert seconds[False] >= 1.03 * seconds[True]
