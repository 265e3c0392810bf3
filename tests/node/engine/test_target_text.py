"""A sequence in target tokens: plans go where their tokens go."""

from cosine_node.engine.base import Row
from cosine_node.engine.retokenized import TargetText
from tests.node.engine.recited import chain

PLAN = ((4, 0.9), (5, 0.8), (6, 0.7))


def fed(*rows: Row) -> TargetText:
    text = TargetText()
    for row in rows:
        text.check(row, vocab_tokens=10, context_tokens=8)
        text.add(row)
    return text


def test_a_planned_token_goes_on_with_the_plan() -> None:
    text = fed(chain(0, [1]))
    text.set_plan(0, PLAN)
    text.add(chain(0, [4, 5], first=1, parent=0))
    text.add(chain(0, [9], first=3, parent=0))
    assert [text.plan(name) for name in range(4)] == [PLAN, PLAN[1:], PLAN[2:], None]
    text.add(chain(0, [6], first=4, parent=2))
    assert text.plan(4) is None


def test_a_plan_outlives_the_node_it_was_made_at_in_the_prefix_only() -> None:
    text = fed(chain(0, [1, 2]))
    text.set_plan(0, ((2, 0.5), (3, 0.5)))
    text.set_plan(1, PLAN)
    text.keep([0, 1])
    text.add(chain(0, [4], first=5))
    assert text.plan(5) == PLAN[1:]
    text.prune([5])
    text.add(chain(0, [8], first=5))
    assert text.plan(5) is None
