"""`cosine-node learned`: the data of learning drafters on this machine is shown, and forgotten."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cosine_train.learning.decision import Acceptance, LearningState
from cosine_train.learning.home import all_homes, write_about
from cosine_train.learning.learner_report import LearnerNow
from cosine_train.learning.stream_store import NAME, StreamStore
from cosine_train.learning.versions import LiveVersion, Versions
from tests.node.cli.conftest import Run
from tests.train.learning.streams import stream
from tests.train.learning.test_versions import make


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = all_homes() / "mine"
    write_about(folder, peer_id="12D3mine", model_name="zoo:draft-code", target_name="zoo:target")
    write_about(all_homes() / "other", peer_id="12D3mine", model_name="zoo:draft-math", target_name="zoo:target")
    with closing(StreamStore(folder)) as store:
        for number in range(6):
            store.add(stream(f"client {number % 2}", seed=number))
    versions = Versions(folder)
    versions.switch(LiveVersion(1, make(versions, 1).digest, ("math",)))
    before, after, live_before = Acceptance(50, 100), Acceptance(60, 100), Acceptance(44, 100)
    LearningState(rounds=4, rollbacks=1, before=before, after=after, live_before=live_before).write(folder)
    LearnerNow(version=1, live_since=Acceptance(90, 150)).write(folder)
    return folder


def facts(run: Run, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run("learned", *arguments, "--json").out)["drafters"][0])


def test_what_is_kept_and_learned_is_shown(run: Run, home: Path) -> None:
    shown = run("learned").out
    assert "zoo:draft-code for zoo:target, 12D3mine\n" in shown
    assert "keeps: 6 texts of 2 clients, 120 tokens" in shown
    assert "serves: version 1 (" in shown
    assert "held out: right at 50.0 % of 100 tokens before its round, at 60.0 % after" in shown
    assert "live: right at 60.0 % of 150 tokens since it serves, at 44.0 % of 100 before" in shown
    assert "has learned: 4 rounds, 1 version taken back, versions on disk: 1" in shown
    assert "does: not running" in shown
    assert "zoo:draft-math" in shown and "serves: the model as it came" in shown
    one = facts(run, "--model", "zoo:draft-code")
    assert (one["streams"], one["live"], one["versions"], one["added_expertise"]) == (6, 1, [1], ["math"])
    assert one["folder"] == str(home)


def test_texts_are_forgotten_and_with_versions_the_weights_also_where_the_store_is_damaged(
    run: Run, home: Path
) -> None:
    one = facts(run, "forget", "--model", "zoo:draft-code")
    assert (one["streams"], one["versions"], one["live"]) == (0, [1], 1)
    one = facts(run, "forget", "--versions")
    assert (one["streams"], one["versions"], one["live"]) == (0, [], 0)
    (home / NAME).write_bytes(b"damage" * 2000)
    assert facts(run, "--model", "zoo:draft-code")["streams"] == 0
    run("learned", "forget")
    assert not (home / NAME).exists()


def test_mistakes_are_named_and_nobody_may_have_learned(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for arguments, sentence in (
        (("delete",), "No such command 'delete'"),
        (("show", "--versions"), "No such option: --versions"),
        (("--model", "zoo:draft-law"), "has learned here"),
    ):
        told = run("learned", *arguments)
        assert (told.code, sentence in told.err) == (2, True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    assert run("learned").out == "No drafter has learned here.\n"
