"""Machines that are slow, stand still or fail on demand."""

from collections.abc import Sequence

import pytest

from cosine_lab.emulation.machine import SimulatedMachine
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.engine.base import PREFIX, BadLogits, Row
from cosine_node.engine.curve import CostCurve
from cosine_protocol.request import Sampling

CURVE = CostCurve(((1, 0.05), (8, 0.08)))


def machine_with_rows(tokens: Sequence[int] = (1, 2)) -> tuple[SimulatedMachine, list[Row]]:
    engine = ScriptedEngine(vocab_tokens=16)
    rows = [Row(engine.open(sampling=Sampling(), prompt_tokens=1), (token,), (0,), (PREFIX,)) for token in tokens]
    return SimulatedMachine(engine, CURVE), rows


@pytest.mark.parametrize(
    ("slowness", "extra_s", "stalled_until_s", "takes_s"),
    [(2.0, 0.1, 0.01, 0.2), (1.0, 0.0, 6.0, 6.0)],
)
def test_a_machine_may_be_slow_late_or_stalled(
    slowness: float, extra_s: float, stalled_until_s: float, takes_s: float
) -> None:
    machine, rows = machine_with_rows((1,))
    machine.slowness, machine.extra_s, machine.stalled_until_s = slowness, extra_s, stalled_until_s
    assert run_virtual(machine.forward(rows)).elapsed_s == pytest.approx(takes_s)


def test_a_bad_pass_spoils_its_first_row_only() -> None:
    machine, rows = machine_with_rows()
    machine.bad_passes = 1
    spoilt, good = run_virtual(machine.forward(rows)).results
    assert isinstance(spoilt.error, BadLogits)
    assert (spoilt.choices, good.error, len(good.choices)) == ((), None, 1)
