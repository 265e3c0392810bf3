"""A sequence in target tokens: rows are checked, plans go where their tokens go."""

import pytest

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.target_text import TargetText
from cosine_protocol.errors import LocalProtocolError
from tests.node.engine.recited import chain

PLAN = ((4, 0.9), (5, 0.8), (6, 0.7))


def fed(*rows: Row) -> TargetText:
    text = TargetText()
    for row in rows:
        text.check(row, vocab_tokens=10, context_tokens=8)
        text.add(row)
    return text


def test_a_path_is_the_prefix_and_the_nodes_down_to_its_end() -> None:
    text = fed(chain(0, [1, 2, 3]), chain(0, [7], first=9, parent=1))
    assert (text.tokens_to(2), text.tokens_to(9), text.tokens_to(PREFIX)) == ([1, 2, 3], [1, 2, 7], [])
    text.keep([0, 1])
    assert (text.prefix, text.prefix_tokens) == ((1, 2), 2)
    assert (text.tokens_to(2), text.tokens_to(9)) == ([1, 2, 3], [1, 2, 7])
    text.prune([9, 77])
    text.keep([2])
    assert text.prefix == (1, 2, 3)
    assert not text.is_empty
    assert TargetText().is_empty


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


def test_what_descends_from_a_pruned_node_is_gone() -> None:
    text = fed(chain(0, [1, 2, 3]))
    text.prune([1])
    with pytest.raises(LocalProtocolError):
        text.check(chain(0, [3], first=5, parent=2), vocab_tokens=10, context_tokens=8)
    text.check(chain(0, [3], first=1, parent=0), vocab_tokens=10, context_tokens=8)


def test_only_a_chain_of_live_nodes_is_kept() -> None:
    text = fed(chain(0, [1, 2, 3]))
    for path in ([1], [0, 2], [0, 9]):
        with pytest.raises(LocalProtocolError):
            text.keep(path)
    text.keep([])
    assert text.prefix == ()


def test_a_row_beyond_the_context_is_refused() -> None:
    text = fed(chain(0, [1] * 8))
    with pytest.raises(LocalProtocolError):
        text.check(chain(0, [1], first=8, parent=7), vocab_tokens=10, context_tokens=8)
