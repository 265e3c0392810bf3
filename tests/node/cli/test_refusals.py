"""A refusal by the system while a command runs is one sentence, with the next step."""

import json
from importlib import import_module
from typing import Any

import pytest

from cosine_node.cli import main

PEER = "/ip4/192.0.2.1/tcp/4001"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "Permission denied", "/keys/own"), "Permission denied (/keys/own); "),
        (OSError(28, "No space left on device"), "No space left on device; "),
        (TimeoutError("timed out"), "timed out; "),
    ],
)
def test_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, sentence: str
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(import_module("cosine_node.cli.generate"), "_generate", refuse)
    with pytest.raises(SystemExit) as exit_:
        main(("generate", "hi", "--initial-peers", PEER, "--json"))
    out, err = capsys.readouterr()
    assert exit_.value.code == 1
    assert err == f"Error: {sentence}`cosine-node doctor` looks for what is wrong on this machine.\n"
    assert json.loads(out)["error"] in err
