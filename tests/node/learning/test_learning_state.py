"""What a learner remembers between runs, whatever is in the file."""

import json
from pathlib import Path

import pytest

from cosine_node.learning.decision import NAME, Acceptance, LearningState


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    state = LearningState(rounds=3, seen=17, earlier_expertise=("math",), before=Acceptance(5, 10))
    state.write(tmp_path)
    assert LearningState.read(tmp_path) == state


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        json.dumps({"rounds": -1, "seen": "7", "before": {"right": 9, "tokens": 3}, "write": 5, "unknown": 1}),
    ],
)
def test_what_is_damaged_is_as_at_first(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    assert LearningState.read(tmp_path) == LearningState()
