"""Published files, computed again: the same figures on any machine.

What takes longer, or real time, is only compared with the page (`test_report`).
"""

import json
from typing import Any

import pytest

from cosine_node.bench import acceptance, rtt
from cosine_node.bench.experiment import run_cell
from cosine_node.cli.bench import rounded
from tests.docs.pages import DOCS
from tests.node.bench.quick import silent


def published(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((DOCS / "benchmarks" / f"{name}.json").read_text("utf-8"))
    return result


def test_which_drafter_knows_which_domain() -> None:
    again, file = rounded(acceptance.run(acceptance.AcceptanceOptions(), say=silent)), published("acceptance")
    assert (again["rows"], again["findings"]) == (file["rows"], file["findings"])


@pytest.mark.thorough
def test_one_request_at_a_time() -> None:
    """Plain decoding on other machines, where there are fewer prompts than in the sweep."""
    options = rtt.RttOptions()
    fields = {"part": "profile", "strategy": "plain", "profile": "25/8", "rtt_ms": 20.0, "temperature": 0.0}
    [row] = [row for row in published("rtt")["rows"] if fields.items() <= row.items()]
    point = rtt.SweepPoint(
        profile="25/8", rtt_ms=20.0, temperature=0.0, seed=0, max_new_tokens=options.max_new_tokens
    )
    plan = rtt.PlannedRow(part="profile", point=point, strategy="plain", prompts=options.side_prompts)
    found = run_cell(plan.cell)
    again = {"seconds": found.total_s, "bytes_per_token": found.report.bytes_per_token, **found.checks}
    assert rounded(again) == {name: row[name] for name in again}
