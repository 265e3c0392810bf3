"""The folder of a learner: whose it is, and what other programs of the user read there, whether it runs or not."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from cosine_train.learning.decision import Acceptance, LearningState
from cosine_train.learning.home import write_about
from cosine_train.learning.learner_report import (
    NAME,
    Activity,
    LearnerNow,
    LearnerReport,
    hold,
    is_running,
    read_reports,
    reports_by_peer,
)
from cosine_train.learning.stream_store import StreamStore
from cosine_train.learning.versions import LiveVersion, Versions
from tests.train.learning.streams import stream
from tests.train.learning.test_versions import make

NOW = LearnerNow(activity=Activity.LEARNING, version=3, live_since=Acceptance(90, 150), new_tokens=1200)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a drafter whose third version serves, among those of a user."""
    folder = tmp_path / "mine"
    write_about(folder, peer_id="12D3mine", model_name="zoo:draft-code", target_name="zoo:target")
    with closing(StreamStore(folder)) as store:
        for number in range(6):
            store.add(stream(f"client {number % 2}", seed=number))
    versions = Versions(folder)
    make(versions, 2)
    versions.switch(LiveVersion(3, make(versions, 3).digest))
    before, after, live_before = Acceptance(412, 1000), Acceptance(520, 1000), Acceptance(44, 100)
    LearningState(rounds=4, rollbacks=1, before=before, after=after, live_before=live_before).write(folder)
    NOW.write(folder)
    return folder


def report_of(home: Path) -> LearnerReport:
    (report,) = read_reports(home.parent)
    return report


def test_people_read_what_it_serves_how_right_it_is_and_what_it_does(home: Path) -> None:
    with hold(home):
        facts = dict(report_of(home).facts())
    assert facts.pop("keeps").startswith("6 texts of 2 clients, 120 tokens, ")
    assert facts == {
        "does": "learning",
        "serves": f"version 3 ({Versions(home).find(3).digest[:8]})",
        "held out": "right at 41.2 % of 1,000 tokens before its round, at 52.0 % after",
        "live": "right at 60.0 % of 150 tokens since it serves, at 44.0 % of 100 before",
        "has learned": "4 rounds, 1 version taken back, versions on disk: 2, 3",
    }


def test_of_several_learners_of_an_identity_the_one_that_runs_counts(home: Path) -> None:
    for name in ("before", "other"):
        write_about(home.parent / name, peer_id="12D3mine", model_name=name, target_name="zoo:target")
    for folder, model in ((home, "zoo:draft-code"), (home.parent / "before", "before")):
        with hold(folder), hold(folder):
            assert is_running(folder)
            assert reports_by_peer(home.parent)["12D3mine"].model == model
        assert not is_running(folder)


def test_what_it_does_comes_back_as_it_was_and_what_is_damaged_as_at_the_beginning(tmp_path: Path) -> None:
    NOW.write(tmp_path)
    assert LearnerNow.read(tmp_path) == NOW
    written = json.loads((tmp_path / NAME).read_text())
    for change in ({"activity": "flying"}, {"live_since": {"right": 3, "tokens": 2}}, {"version": "3"}):
        (tmp_path / NAME).write_text(json.dumps(written | change))
        assert LearnerNow.read(tmp_path) == LearnerNow()
