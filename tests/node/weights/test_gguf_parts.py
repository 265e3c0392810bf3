"""A stage fetches only its tensors of a GGUF file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cosine_engine import zoo
from cosine_engine.gguf.unfolding import unfold, unfold_part
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.models.partial_folder import PartialFolder
from cosine_engine.torch.loading import read_config
from cosine_node.stages.host import load_part, wanted_tensors
from cosine_p2p.text.held_weights import HeldWeights
from cosine_protocol.errors import UsageError
from cosine_protocol.stage import LayerRange
from cosine_protocol.weights import Manifest
from tests.cosine_p2p.gguf_samples import write_sample
from tests.engine.gguf_architectures import TINY
from tests.node.weights.models import Nodes, held, new_folder, rows_of
from tests.scenes import in_real_time
from tests.thoroughness import quick_first

MIDDLE = LayerRange(first=2, end=5, layers=8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gguf")
    write_gguf(zoo.folder("target"), place / "target.gguf", weights="Q4_1")
    return unfold(place / "target.gguf", cache_folder=place / "cache")


@pytest.fixture(scope="module")
def known(whole: Path) -> HeldWeights:
    return held(whole)


@in_real_time
async def fetch(known: HeldWeights, folder: PartialFolder, rows: set[int]) -> None:
    nodes = Nodes(known)
    for name in ("one", "other"):
        await nodes.add(name)
    await nodes.fetch(folder, rows)


def fetched(known: HeldWeights, cache: Path, layers: LayerRange) -> Path:
    folder = new_folder(known, cache)
    unfold_part(folder.path)
    is_wanted = wanted_tensors(str(folder.path), layers)
    fetch(known, folder, {row for row, one in enumerate(known.manifest.tensors) if is_wanted(one.name)})
    return folder.path


@pytest.mark.parametrize("layers", quick_first([MIDDLE, LayerRange(first=0, end=2, layers=8)]), ids=str)
def test_a_stage_holds_its_share_and_computes_with_it_as_with_the_file(
    layers: LayerRange, whole: Path, known: HeldWeights, tmp_path: Path
) -> None:
    folder = fetched(known, tmp_path, layers)
    there = HeldWeights.read(folder, cache_folder=tmp_path / "hashes")
    assert there.content_digest == known.content_digest
    assert not there.is_whole
    share = sum(placed.tensor.size_bytes for placed in there.tensors.values())
    stored = sum(file.stat().st_size for file in folder.glob("*.gguf"))
    assert stored < 1.02 * share
    ours, theirs = (load_part(str(place), layers, dtype=torch.float32).state_dict() for place in (folder, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_not_here_is_named(known: HeldWeights, tmp_path: Path) -> None:
    folder = fetched(known, tmp_path, MIDDLE)
    with pytest.raises(UsageError, match=r"holds a part of a model without blk\.5\."):
        load_part(str(folder), LayerRange(first=4, end=6, layers=8), dtype=torch.float32)


def test_a_configuration_that_tensors_tell_needs_these_first(tmp_path: Path) -> None:
    file = next(file for name, file in TINY.items() if "rope_factors_long.weight" in file.tensors())
    whole = unfold(file.write(tmp_path / "a.gguf"), cache_folder=tmp_path / "cache")
    known = held(whole)
    folder = new_folder(known, tmp_path / "part")
    fetch(known, folder, rows_of(known, "rope_factors"))
    unfold_part(folder.path)
    assert (folder.path / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    assert read_config(str(folder.path)).rope_parameters["rope_type"] == "longrope"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"dtype": "Q9_9"}, "unknown type Q9_9"),
        ({"shape": (32, 0)}, "has no weights"),
        ({"shape": (32, 5)}, "of another length"),
    ],
)
def test_a_manifest_of_tensors_that_no_file_has_is_refused(
    row: dict[str, object], said: str, tmp_path: Path
) -> None:
    known = HeldWeights.read(write_sample(tmp_path / "a.gguf"), cache_folder=tmp_path / "hashes")
    first, *others = sorted(known.manifest.tensors, key=lambda tensor: tensor.dtype != "Q8_0")
    rows = sorted((replace(first, **row), *others), key=lambda tensor: tensor.name)  # type: ignore[arg-type]  # by case
    manifest = Manifest(known.manifest.parts, tuple(rows))
    with pytest.raises(UsageError, match=said):
        PartialFolder(manifest, manifest.encode(), cache_folder=tmp_path)
