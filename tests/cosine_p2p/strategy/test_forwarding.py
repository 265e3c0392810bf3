"""The verifier gets what is likely enough, once, and again where the probability has changed."""

from cosine_p2p.strategy.base import SendTree
from cosine_p2p.strategy.cosine import BLOCK_NODES, CLIENT_MIN_PATH_PROBABILITY, Forwarder
from cosine_p2p.strategy.fusion import FusedView, Fusion
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.nodes import BASE, Node

ROOT = bytes(16)


def view_of(tree: LiveTree, *authors: int) -> FusedView:
    return Fusion().view(tree, dict.fromkeys(authors, 1.0))


def tokens_of(blocks: list[SendTree]) -> list[list[int]]:
    return [[node.token for node in send.block.nodes] for send in blocks]


def test_a_node_goes_once_and_again_when_its_probability_changes() -> None:
    tree = LiveTree(ROOT)
    forwarder = Forwarder(tree)
    touched = tree.attach(ROOT, 0, [Node(BASE, 5, 0.9)], [1])
    assert tokens_of(forwarder.blocks(view_of(tree, 1), touched)) == [[5]]
    assert forwarder.blocks(view_of(tree, 1), touched) == []
    tree.attach(ROOT, 0, [Node(BASE, 6, 0.9)], [2])
    assert tokens_of(forwarder.blocks(view_of(tree, 1, 2), touched)) == [[5]]
    forwarder.forget()
    assert tokens_of(forwarder.blocks(view_of(tree, 1, 2), touched)) == [[5]]


def test_unlikely_paths_stay_here() -> None:
    tree = LiveTree(ROOT)
    chain = [Node(index - 1, 5, 0.2) for index in range(12)]
    view, touched = view_of(tree, 1), tree.attach(ROOT, 0, chain, [1] * 12)
    [sent] = tokens_of(Forwarder(tree).blocks(view, touched))
    assert 0 < len(sent) < 12
    assert (
        view.path_probability(touched[len(sent)])
        < CLIENT_MIN_PATH_PROBABILITY
        <= view.path_probability(touched[len(sent) - 1])
    )


def test_blocks_start_at_the_deepest_prefix_the_verifier_knows() -> None:
    tree = LiveTree(ROOT)
    forwarder = Forwarder(tree)
    forwarder.blocks(view_of(tree, 1), tree.attach(ROOT, 0, [Node(BASE, 5, 1.0), Node(0, 6, 1.0)], [1, 1]))
    touched = tree.attach(roll_digest(ROOT, [5, 6]), 2, [Node(BASE, 7, 1.0)], [1])
    [send] = forwarder.blocks(view_of(tree, 1), touched)
    assert (send.block.base, send.block.position) == (roll_digest(ROOT, [5, 6]), 2)
    tree.advance([5])
    forwarder.prune()
    touched = tree.attach(roll_digest(ROOT, [5, 6, 7]), 3, [Node(BASE, 8, 1.0)], [1])
    [send] = forwarder.blocks(view_of(tree, 1), touched)
    assert (send.block.base, send.block.authors) == (roll_digest(ROOT, [5, 6, 7]), (1,))


def test_many_nodes_go_in_several_blocks() -> None:
    tree = LiveTree(ROOT)
    nodes = [Node(BASE, token, 1 / 40) for token in range(40)]
    touched = tree.attach(ROOT, 0, nodes, [1] * 40)
    assert [len(tokens) for tokens in tokens_of(Forwarder(tree).blocks(view_of(tree, 1), touched))] == [
        BLOCK_NODES,
        40 - BLOCK_NODES,
    ]
