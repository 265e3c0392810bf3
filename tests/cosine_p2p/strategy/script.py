"""Events for tests of strategies."""

from collections.abc import Iterable, Sequence

from cosine_p2p.strategy.base import Action, Committed, DrafterStarted, FragmentReceived, SendTree
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import BASE, Draft, Node, NodeBlock
from cosine_protocol.verify import PassStats

ROOT = bytes(16)


def started(author: int = 1, *, prompt_nll: float = 1.0, rtt_s: float = 0.01) -> DrafterStarted:
    return DrafterStarted(author, prompt_nll, 0.006, rtt_s)


def committed(tokens: Sequence[int], *, after: Sequence[int] = (), authors: Sequence[int] = ()) -> Committed:
    return Committed(len(after), tuple(tokens), PassStats(0, 0, 60_000), bytes(authors))


def drafted(
    tokens: Sequence[int], *, after: Sequence[int] = (), author: int = 1, confidence: float = 0.8
) -> FragmentReceived:
    nodes = tuple(Node(index - 1 if index else BASE, token, confidence) for index, token in enumerate(tokens))
    return FragmentReceived(author, Draft(1, 1, roll_digest(ROOT, after), len(after), NodeBlock.of(nodes)))


def tokens_of_trees(actions: Iterable[Action]) -> list[list[int]]:
    return [[node.token for node in action.block.nodes] for action in actions if isinstance(action, SendTree)]


def feed(tree: LiveTree, actions: Iterable[Action]) -> None:
    for action in actions:
        if isinstance(action, SendTree):
            block = action.block
            tree.attach(block.base, block.position, NodeBlock.of(block.nodes), block.authors)
