"""A GGUF file in four bits over stages that fetch their share, as processes: the whole file's texts."""

from collections.abc import Iterator
from typing import Final

import pytest

from cosine_node import zoo
from cosine_node.gguf.writing import write_gguf
from tests.e2e.gguf_stages import GgufSwarm, Texts
from tests.e2e.nodes import close_all

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

CUT: Final = ("0:3", "3:8")
MOST: Final = 1.15
"""Of a stage's share of the file: what it may take of memory for weights."""
VOCABULARY_BYTES: Final = 1 << 20
"""More than the tokenizer and the metadata of this small model take."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GgufSwarm]:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(zoo.folder("target"), folder / "target.gguf", weights="Q4_1")
    swarm = GgufSwarm(folder / "target.gguf", folder)
    try:
        swarm.start_whole()
        yield swarm
    finally:
        close_all(list(swarm.nodes.values()))


@pytest.fixture(scope="module")
def expected(swarm: GgufSwarm) -> Texts:
    return swarm.texts("whole")


@pytest.fixture(scope="module")
def stages(swarm: GgufSwarm, expected: Texts) -> list[str]:
    """The stages, once they are all that there is."""
    assert expected
    names = swarm.start_stages(CUT)
    swarm.close("whole")
    return names


def test_texts_are_those_of_the_whole_file_in_the_same_engine(
    swarm: GgufSwarm, stages: list[str], expected: Texts
) -> None:
    assert stages
    assert swarm.texts(swarm.start_head()) == expected


def test_a_stage_takes_its_share_of_memory_and_of_the_disk(swarm: GgufSwarm, stages: list[str]) -> None:
    for name in stages:
        size = swarm.size(name)
        assert size.weights_bytes <= MOST * size.share_bytes
        assert size.stored_bytes <= MOST * size.share_bytes + VOCABULARY_BYTES
