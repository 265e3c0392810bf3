"""`cosine-node convert`: what it writes and what it says."""

import json
from pathlib import Path

import pytest

from cosine_node.cli import main
from cosine_node.gguf.file import GgufFile


def convert(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as exit_:
        main(["convert", *arguments])
    return exit_.value.code


def test_a_model_that_ships_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "code.gguf"
    assert convert("zoo:draft-code", str(file), "--weights", "q5_1", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    written = GgufFile.open(file)
    assert (written.name, written.weights) == ("draft-code", "Q5_1")
    assert said == {
        "file": str(file),
        "weights": "Q5_1",
        "bytes": file.stat().st_size,
        "content_digest": written.digest.hex(),
    }
    assert convert("zoo:draft-code", str(file)) == 0
    assert capsys.readouterr().out == f"{file}: {file.stat().st_size / 1e6:.1f} MB, weights in Q8_0\n"


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert("zoo:draft-code", str(tmp_path / "a.gguf"), "--weights", "Q2") == 2
    assert "Weights cannot be written in 'Q2'" in capsys.readouterr().err
    assert convert("zoo:draft-code", str(tmp_path / "none" / "a.gguf")) == 2
    assert f"There is no folder {tmp_path / 'none'}" in capsys.readouterr().err
