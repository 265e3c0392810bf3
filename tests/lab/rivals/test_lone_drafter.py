"""One drafter at a time: the best, another when it is lost or often wrong."""

from cosine_lab.rivals.lone_drafter import LoneDrafter
from cosine_p2p.strategy.base import RecallDrafter, ReleaseDrafter, SendAdvance, SendAssign
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.nodes import BASE, Node
from tests.cosine_p2p.strategy.script import ROOT, committed, started


def alone(author: int | None = None) -> tuple[LoneDrafter, LiveTree]:
    tree = LiveTree(ROOT)
    return LoneDrafter(tree, author=author, depth_tokens=8, width_nodes=1), tree


def test_whoever_knows_the_prompt_better_takes_the_work_over() -> None:
    drafter, _ = alone()
    [first] = drafter.join(started(1, prompt_nll=2.0))
    assert isinstance(first, SendAssign)
    assert drafter.join(started(2, prompt_nll=3.0)) == []
    released, assign = drafter.join(started(3, prompt_nll=1.0))
    assert isinstance(released, ReleaseDrafter) and released.author == 1
    assert isinstance(assign, SendAssign) and assign.author == 3 == drafter.drafting


def test_when_nobody_else_is_left_the_released_are_asked_again() -> None:
    drafter, _ = alone()
    drafter.join(started(1, prompt_nll=2.0))
    drafter.join(started(2, prompt_nll=1.0))
    [recall] = drafter.leave(2)
    assert isinstance(recall, RecallDrafter) and recall.author == 1
    assert drafter.drafting is None and drafter.token_s is None
    [assign] = drafter.join(started(1, prompt_nll=2.0))
    assert isinstance(assign, SendAssign) and drafter.drafting == 1


def test_a_named_author_drafts_whatever_others_know() -> None:
    drafter, _ = alone(author=2)
    [released] = drafter.join(started(1, prompt_nll=0.1))
    assert isinstance(released, ReleaseDrafter) and drafter.drafting is None
    drafter.join(started(2, prompt_nll=3.0))
    assert drafter.drafting == 2
    assert drafter.leave(2) == []


def test_one_that_is_often_wrong_makes_way() -> None:
    drafter, tree = alone()
    drafter.join(started(1, prompt_nll=1.0))
    drafter.join(started(2, prompt_nll=2.0))
    output: list[int] = []
    for _ in range(40):
        tree.attach(tree.root.digest, tree.position, [Node(BASE, 7, 0.9)], [1])
        drafter.learn((3,))
        tree.advance([3])
        actions = drafter.advance(committed([3], after=output))
        output.append(3)
        if drafter.drafting == 2:
            break
        assert actions == [SendAdvance(1, len(output) - 1, (3,)), SendAdvance(2, len(output) - 1, (3,))]
    assert drafter.drafting == 2
    assert 5 <= len(output) < 20
