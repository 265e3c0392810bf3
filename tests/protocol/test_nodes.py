"""Node blocks: how a piece of tree travels."""

import pytest
from hypothesis import given

from cosine_protocol.errors import MalformedMessage
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node, NodeBlock
from tests.protocol.strategies import blocks


@given(block=blocks())
def test_a_block_equals_the_block_of_its_nodes(block: NodeBlock) -> None:
    assert NodeBlock.of(list(block)) == block
    assert len(block) == len(list(block))


@given(block=blocks())
def test_parents_come_first(block: NodeBlock) -> None:
    assert all(BASE <= node.parent < index for index, node in enumerate(block))


def test_a_confidence_is_rounded_to_a_255th_and_clamped() -> None:
    nodes = [Node(BASE, 1, confidence) for confidence in (-1.0, 0.0, 0.5, 1.0, 7.0)]
    assert NodeBlock.of(nodes).confidences == bytes([0, 0, 128, 255, 255])


def test_the_largest_block_is_a_chain_whose_last_parent_fits_one_byte() -> None:
    block = NodeBlock.of([Node(index - 1, index, 1.0) for index in range(MAX_BLOCK_NODES)])
    assert block.parents[-1] == MAX_BLOCK_NODES - 1


@pytest.mark.parametrize("parents", [b"\1", b"\0\2", b"\0\0\3"])
def test_a_parent_that_does_not_come_first_is_refused(parents: bytes) -> None:
    with pytest.raises(MalformedMessage, match="before its parent"):
        NodeBlock(parents, (1,) * len(parents), bytes(len(parents)))


@pytest.mark.parametrize(
    ("parents", "tokens", "confidences"), [(b"", (1,), b"\0"), (b"\0", (), b"\0"), (b"\0", (1,), b"")]
)
def test_fields_of_different_lengths_are_refused(
    parents: bytes, tokens: tuple[int, ...], confidences: bytes
) -> None:
    with pytest.raises(MalformedMessage, match="differ in number"):
        NodeBlock(parents, tokens, confidences)
