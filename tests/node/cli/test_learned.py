"""`cosine-node learned`: what drafters keep is shown and deleted."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cosine_node.cli import main
from cosine_node.learning.decision import Acceptance, LearningState
from cosine_node.learning.home import all_homes, write_about
from cosine_node.learning.stream_store import NAME, StreamStore
from cosine_node.learning.versions import LiveVersion, Versions
from tests.node.learning.streams import stream
from tests.node.learning.test_versions import make


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a drafter that has learned once."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = all_homes() / "mine"
    write_about(folder, peer_id="12D3mine", model_name="zoo:draft-code", target_name="zoo:target")
    write_about(all_homes() / "other", peer_id="12D3mine", model_name="zoo:draft-math", target_name="zoo:target")
    with closing(StreamStore(folder)) as store:
        for number in range(6):
            store.add(stream(f"client {number % 2}", seed=number))
    versions = Versions(folder)
    versions.switch(LiveVersion(1, make(versions, 1).digest, ("math",)))
    LearningState(rounds=1, before=Acceptance(50, 100), after=Acceptance(60, 100)).write(folder)
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command says on stdout, or on stderr where it fails."""
    with pytest.raises(SystemExit) as ended:
        main(["learned", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out if code == 0 else err


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return dict(json.loads(said(capsys, *arguments, "--json"))["drafters"][0])


def test_it_shows_what_is_kept_and_learned(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    shown = said(capsys)
    assert "zoo:draft-code for zoo:target, 12D3mine\n" in shown
    assert "keeps: 6 texts of 2 clients, 120 tokens" in shown
    assert "serves: version 1 (" in shown
    assert "held out: right at 50.0 % of 100 tokens before its round, at 60.0 % after" in shown
    assert "does: not running" in shown
    assert "zoo:draft-math" in shown and "serves: the model as it came" in shown
    one = facts(capsys, "--model", "zoo:draft-code")
    assert (one["streams"], one["live"], one["versions"], one["added_expertise"]) == (6, 1, [1], ["math"])
    assert one["folder"] == str(home)


def test_it_forgets_texts_and_with_versions_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    one = facts(capsys, "forget", "--model", "zoo:draft-code")
    assert (one["streams"], one["versions"], one["live"]) == (0, [1], 1)
    one = facts(capsys, "forget", "--versions")
    assert (one["streams"], one["versions"], one["live"]) == (0, [], 0)


def test_a_damaged_store_is_shown_as_empty_and_forgotten(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    for file in home.glob(f"{NAME}*"):
        file.write_bytes(b"damage" * 2000)
    assert facts(capsys, "--model", "zoo:draft-code")["streams"] == 0
    said(capsys, "forget")
    assert not (home / NAME).exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("delete",), "show or forget"),
        (("--versions",), "learned forget"),
        (("--model", "zoo:draft-law"), "has learned here"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in said(capsys, *arguments, code=2)


def test_where_nobody_has_learned_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    assert said(capsys) == "No drafter has learned here.\n"
