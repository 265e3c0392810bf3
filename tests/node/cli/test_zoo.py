"""`cosine-node zoo` and `convert`: what ships with the node, and models as GGUF files."""

import json
from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.cli import main
from cosine_node.gguf.file import GgufFile


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["zoo", *arguments])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_every_model_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    names = [name for family in zoo.Family for name in zoo.names(family)]
    assert [line.split()[0] for line in lines] == [f"zoo:{name}" for name in names]


def test_the_json_names_what_each_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    models = json.loads(shown(capsys, "--json"))["models"]
    toys = [model for model in models if model["family"] == "toy"]
    assert [model["name"] for model in toys] == list(zoo.names())
    for model in models:
        assert model["bytes"] > 500_000
        assert Path(model["place"]).exists()
    by_name = {model["name"]: model for model in models}
    assert by_name["target"]["expertise"] == [] and by_name["target"]["acceptance"] is None
    assert by_name["draft-code"]["expertise"] == ["code"]
    assert 0 < by_name["draft-code"]["acceptance"] < 1


def test_one_model_is_shown_with_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(zoo.folder("draft-math")) in shown(capsys, "draft-math")


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["zoo", "nobody"])
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "draft-math" in err and err.count("\n") == 1


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
