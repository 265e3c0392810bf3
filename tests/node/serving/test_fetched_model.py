"""Local models, and models that must be fetched."""

import shutil
from pathlib import Path

import pytest

from cosine_engine import zoo
from cosine_node.serving.fetched_model import local_folder
from cosine_protocol.errors import UsageError

DIGEST = "ab" * 32


def test_embedded_models_and_folders_are_here(tmp_path: Path) -> None:
    assert local_folder("zoo:target") == zoo.folder("target")
    assert local_folder(str(zoo.folder("target"))) == zoo.folder("target")
    with pytest.raises(UsageError, match="no model folder"):
        local_folder(str(tmp_path / "none"))


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A downloaded model of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return Path(
        shutil.copytree(zoo.folder("target"), tmp_path / "models--someone--model" / "snapshots" / ("0" * 40))
    )


@pytest.mark.parametrize("model", ["someone/other", DIGEST, f"someone/other@{DIGEST}", f"zoo:target@{DIGEST}"])
def test_names_and_digests_that_are_not_here_are_to_be_fetched(snapshot: Path, model: str) -> None:
    assert local_folder(model) is None


def test_a_download_is_here_where_it_is_whole(snapshot: Path) -> None:
    assert local_folder("someone/model") == snapshot
    (snapshot / "model.safetensors").unlink()
    assert local_folder("someone/model") is None
