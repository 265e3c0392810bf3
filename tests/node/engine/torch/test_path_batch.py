from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.torch.cached_model import PathBatch, PathToken, RowPaths
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

PAGE = 4


def grown(prefix: int) -> SequenceTree:
    """A sequence of tokens 100, 101, ... in slots 0, 1, ..."""
    tree = SequenceTree(sampling=Sampling(), prompt_tokens=0)
    tree.begin(range(100, 100 + prefix), range(prefix))
    return tree


def fed(tree: SequenceTree, row: Row, first_slot: int) -> RowPaths:
    tree.add(row, range(first_slot, first_slot + len(row.tokens)))
    return RowPaths(tree, row)


def tokens(batch: PathBatch) -> list[list[int]]:
    return [[step.token for step in path] for path in batch.paths]


def test_a_chain_is_one_path() -> None:
    batch = fed(grown(3), Row.chain(0, [7, 8]), 10).whole()
    assert batch == PathBatch((0, 1, 2), ((PathToken(7, 10, 0), PathToken(8, 11, 1)),))
    assert (batch.padded(), batch.places(), batch.slots()) == ([[7, 8]], {0: (0, 0), 1: (0, 1)}, [10, 11])


def test_a_tree_is_a_path_for_each_leaf_and_shared_tokens_are_written_once() -> None:
    row = Row(0, (5, 6, 7, 8), (0, 1, 2, 3), (PREFIX, 0, 0, 2))
    batch = fed(grown(2), row, 10).whole()
    assert batch.padded() == [[5, 6, 0], [5, 7, 8]]
    assert batch.places() == {0: (0, 0), 1: (0, 1), 2: (1, 1), 3: (1, 2)}
    assert batch.slots() == [10, 11, 12, 13]


def test_what_an_earlier_pass_fed_is_past_where_all_paths_share_it() -> None:
    tree = grown(2)
    fed(tree, Row(0, (5, 6, 7), (0, 1, 2), (PREFIX, 0, 0)), 10)
    batch = fed(tree, Row(0, (8, 9), (3, 4), (1, 2)), 20).whole()
    assert batch.past == (0, 1, 10)
    assert tokens(batch) == [[6, 8], [7, 9]]
    assert batch.slots() == [20, 21]


def test_a_stem_is_fed_from_its_last_known_state_on_and_branches_below_it() -> None:
    paths = fed(grown(6), Row(0, (5, 6, 7, 8), (0, 1, 2, 3), (PREFIX, 0, 0, 2)), 10)
    assert (paths.known_slots, paths.stem_end) == ([0, 1, 2, 3, 4, 5], 7)
    stem, branches = paths.split(4, page_tokens=PAGE, most_tokens=100)
    assert (stem.past, tokens(stem)) == ((0, 1, 2, 3), [[104, 105, 5]])
    assert stem.slots() == [10]
    assert (branches.past, tokens(branches)) == ((0, 1, 2, 3, 4, 5, 10), [[6], [7, 8]])
    assert branches.slots() == [11, 12, 13]


def test_branches_alone_remain_where_the_state_above_them_is_known() -> None:
    (branches,) = fed(grown(2), Row(0, (6, 7), (0, 1), (PREFIX, PREFIX)), 10).split(
        2, page_tokens=PAGE, most_tokens=100
    )
    assert (branches.past, tokens(branches)) == ((0, 1), [[6], [7]])


def test_a_long_stem_is_cut_after_the_last_whole_page_and_where_a_piece_is_full() -> None:
    paths = fed(grown(0), Row.chain(0, list(range(11))), 10)
    assert [tokens(piece)[0] for piece in paths.split(0, page_tokens=PAGE, most_tokens=100)] == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10],
    ]
    pieces = paths.split(0, page_tokens=PAGE, most_tokens=5)
    assert [len(tokens(piece)[0]) for piece in pieces] == [5, 3, 2, 1]
    assert [len(piece.past) for piece in pieces] == [0, 5, 8, 10]
