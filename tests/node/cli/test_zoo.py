"""`cosine-node zoo`: what ships with the node."""

import json
from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.cli import main


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
