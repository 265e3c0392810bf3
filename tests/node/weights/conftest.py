"""A small model to fetch or serve."""

import pytest

from cosine_p2p.text.held_weights import HeldWeights
from tests.node.weights.models import held, write_model


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> HeldWeights:
    return held(write_model(tmp_path_factory.mktemp("models") / "whole"))
