"""The folder of a learner: its identity, and the report for other programs, running or not."""

import json
from pathlib import Path

from cosine_train.learning.decision import Acceptance
from cosine_train.learning.home import write_about
from cosine_train.learning.learner_report import NAME, Activity, LearnerNow, hold, is_running, reports_by_peer

NOW = LearnerNow(activity=Activity.LEARNING, version=3, live_since=Acceptance(90, 150), new_tokens=1200)


def test_of_several_learners_of_an_identity_the_one_that_runs_counts(tmp_path: Path) -> None:
    names = ("first", "second", "third")
    for name in names:
        write_about(tmp_path / name, peer_id="12D3mine", model_name=name, target_name="zoo:target")
    for name in names[1:]:
        folder = tmp_path / name
        with hold(folder), hold(folder):
            assert is_running(folder)
            assert reports_by_peer(tmp_path)["12D3mine"].model == name
        assert not is_running(folder)


def test_what_it_does_comes_back_as_it_was_and_what_is_damaged_as_at_the_beginning(tmp_path: Path) -> None:
    NOW.write(tmp_path)
    assert LearnerNow.read(tmp_path) == NOW
    written = json.loads((tmp_path / NAME).read_text())
    for change in ({"activity": "flying"}, {"live_since": {"right": 3, "tokens": 2}}, {"version": "3"}):
        (tmp_path / NAME).write_text(json.dumps(written | change))
        assert LearnerNow.read(tmp_path) == LearnerNow()
