"""The share of a text that is new."""

from cosine_lab.experiments.repetition import distinct_share


def test_a_text_that_never_repeats_itself_is_all_new() -> None:
    assert distinct_share([range(40)]) == 1.0


def test_a_loop_is_new_once() -> None:
    assert distinct_share([[1, 2] * 10]) == 2 / 17


def test_texts_are_compared_with_themselves_alone() -> None:
    assert distinct_share([range(10), range(10)]) == 1.0


def test_texts_too_short_for_a_run_do_not_count() -> None:
    assert distinct_share([[1, 2, 3]]) == distinct_share([]) == 1.0
