"""Pieces that are given back come first, and at the end another source fetches what a slow one has not brought."""

from cosine_node.weights.pieces import PieceBoard, Run


def everything(_: int) -> bool:
    return True


def test_what_is_given_back_comes_first() -> None:
    board = PieceBoard([(0, 0), (0, 1), (0, 2)])
    run = board.take("a", holds=everything, most=2)
    assert run is not None
    board.note_done(0, 0)
    board.give_back(run, "a")
    assert board.take("b", holds=everything) == Run(0, 1, 1)


def test_at_the_end_another_source_fetches_what_a_slow_one_has_not_brought() -> None:
    board = PieceBoard([(0, 0)])
    assert board.take("slow", holds=everything) == Run(0, 0, 1)
    assert board.take("slow", holds=everything) is None
    assert board.take("fast", holds=everything) == Run(0, 0, 1)
    assert board.take("third", holds=everything) is None
    board.give_back(Run(0, 0, 1), "fast")
    # The slow one still fetches it.
    assert board.take("fast", holds=everything) == Run(0, 0, 1)
    assert [board.note_done(0, 0), board.note_done(0, 0)] == [True, False]
    assert board.is_done
