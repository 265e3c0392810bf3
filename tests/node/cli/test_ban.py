"""`cosine-node ban`: bans are made, shown, lifted, and last between commands."""

import json
from pathlib import Path

import pytest

from cosine_node.cli import main
from cosine_protocol.identity import Identity

PEER = Identity.from_seed(b"\x05" * 32).peer_id


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command says on stdout, or on stderr where it fails."""
    with pytest.raises(SystemExit) as ended:
        main(["ban", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == code, err
    return out if code == 0 else err


def test_a_ban_is_made_shown_and_lifted(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys) == "Nobody is banned.\n"
    assert said(capsys, PEER, "--days", "7").startswith(f"{PEER}  until 20")
    assert said(capsys, PEER, "--why", "\x1b[2Jspam").endswith(": \ufffd[2Jspam\n")
    ban = json.loads(said(capsys, "--json"))["bans"][PEER]
    assert (ban["floods"], ban["until"][:2]) == (0, "20")
    assert said(capsys, PEER, "--lift") == "Nobody is banned.\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((PEER, "--lift"), "is not banned"),
        (("--lift",), "Say whose ban is to end"),
        ((PEER, "--days", "-1"), "--days must be above 0"),
        (("nobody",), "'nobody' is neither a peer id nor a file"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in said(capsys, *arguments, code=2)
