"""What other programs of the user read of a learner, whether it runs or not."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from cosine_node.learning.decision import Acceptance, LearningState
from cosine_node.learning.home import write_about
from cosine_node.learning.learner_report import (
    NAME,
    Activity,
    LearnerNow,
    LearnerReport,
    hold,
    is_running,
    read_reports,
    reports_by_peer,
)
from cosine_node.learning.stream_store import StreamStore
from cosine_node.learning.versions import LiveVersion, Versions
from tests.node.learning.streams import stream
from tests.node.learning.test_versions import make

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
    LearningState(
        rounds=4,
        rollbacks=1,
        before=Acceptance(412, 1000),
        after=Acceptance(520, 1000),
        live_before=Acceptance(44, 100),
    ).write(folder)
    NOW.write(folder)
    return folder


def report_of(home: Path) -> LearnerReport:
    (report,) = read_reports(home.parent)
    return report


def test_people_read_what_it_serves_how_right_it_is_and_what_it_does(home: Path) -> None:
    with hold(home):
        facts = dict(report_of(home).facts())
    digest = Versions(home).find(3).digest
    assert facts == {
        "does": "learning",
        "serves": f"version 3 ({digest[:8]})",
        "held out": "right at 41.2 % of 1,000 tokens before its round, at 52.0 % after",
        "live": "right at 60.0 % of 150 tokens since it serves, at 44.0 % of 100 before",
        "keeps": facts["keeps"],
        "has learned": "4 rounds, 1 version taken back, versions on disk: 2, 3",
    }
    assert facts["keeps"].startswith("6 texts of 2 clients, 120 tokens, ")


def test_one_that_does_not_run_says_so_and_what_it_was(home: Path) -> None:
    facts = dict(report_of(home).facts())
    assert facts["does"] == "not running"
    assert facts["live"].startswith("right at 60.0 % of 150 tokens")


def test_what_is_counted_of_another_version_is_not_of_this_one(home: Path) -> None:
    Versions(home).switch(LiveVersion(2))
    facts = dict(report_of(home).facts())
    assert facts["serves"] == "version 2"
    assert facts["live"] == "nothing drafted since it serves, at 44.0 % of 100 before"


def test_what_a_round_lacks_is_said(home: Path) -> None:
    LearnerNow(activity=Activity.WAITING, new_tokens=1200).write(home)
    with hold(home):
        does = dict(report_of(home).facts())["does"]
    assert does == (
        "waiting for texts: has 1,200 of the 2,000 new tokens that a round takes, and 0 of the 200 to measure it by"
    )


def test_machines_read_the_same(home: Path) -> None:
    told = json.loads(json.dumps(report_of(home).as_object()))
    assert (told["live"], told["versions"], told["rollbacks"], told["doing"]) == (3, [2, 3], 1, "not running")
    assert (told["live_acceptance_before"], told["live_acceptance_since"]) == (0.44, 0.6)


def test_of_several_learners_of_an_identity_the_one_that_runs_counts(home: Path) -> None:
    for name in ("before", "other"):
        write_about(home.parent / name, peer_id="12D3mine", model_name=name, target_name="zoo:target")
    with hold(home):
        assert reports_by_peer(home.parent)["12D3mine"].model == "zoo:draft-code"
    with hold(home.parent / "before"):
        assert reports_by_peer(home.parent)["12D3mine"].model == "before"


def test_it_runs_as_long_as_it_holds_its_folder(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    with hold(tmp_path), hold(tmp_path):
        assert is_running(tmp_path)
    assert not is_running(tmp_path)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    NOW.write(tmp_path)
    assert LearnerNow.read(tmp_path) == NOW


@pytest.mark.parametrize(
    "change", [{"activity": "flying"}, {"live_since": {"right": 3, "tokens": 2}}, {"version": "3"}]
)
def test_what_is_damaged_is_as_at_the_beginning(tmp_path: Path, change: dict[str, object]) -> None:
    NOW.write(tmp_path)
    file = tmp_path / NAME
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert LearnerNow.read(tmp_path) == LearnerNow()
