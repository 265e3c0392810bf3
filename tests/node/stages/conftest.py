from pathlib import Path

import pytest
import torch

from cosine_node.stages.host import StageModel
from tests.engine.staged import load_untried, ranges
from tests.node.stages.chains import POOL_TOKENS, save_tiny


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """Use one thread, also in the fixtures that load models."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of four layers."""
    return save_tiny(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def halves(folder: Path) -> list[StageModel]:
    """Its first two layers, and its last two."""
    return load_untried(folder, ranges(2, 4), slots=POOL_TOKENS)
