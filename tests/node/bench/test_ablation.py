"""The rows of the ablation follow from the options that exist."""

from itertools import pairwise

from cosine_node.bench.ablation import CHAIN, CUMULATIVE, PARTS, SINGLE, variants
from cosine_node.bench.entrants import NOT_OF_STRATEGIES, POLICIES
from cosine_p2p.strategies.cosine import CosineOptions

CHOICES = {
    order: [variant.choice for variant in variants() if variant.order == order] for order in (CUMULATIVE, SINGLE)
}


def test_the_first_row_has_no_part_and_the_last_cumulative_one_all() -> None:
    first = CosineOptions(**CHOICES[CUMULATIVE][0])
    assert (first.drafters, first.width_nodes) == (1, 1)
    assert CosineOptions(**CHOICES[CUMULATIVE][-1]) == CosineOptions()


def test_every_row_differs_from_the_one_before_in_one_part() -> None:
    assert all(len(set(before) - set(after)) == 1 for before, after in pairwise(CHOICES[CUMULATIVE]))


def test_what_is_left_out_alone_is_one_option_or_one_policy() -> None:
    for choice in CHOICES[SINGLE]:
        assert len(choice) == 1
        assert choice.get("policy", "ours") in POLICIES
        CosineOptions(**{name: value for name, value in choice.items() if name not in NOT_OF_STRATEGIES})


def test_what_is_on_without_a_part_is_no_default() -> None:
    for option, value in [pair for off in PARTS.values() for pair in off.items()]:
        assert getattr(CosineOptions(), option) != value


def test_labels_are_unique() -> None:
    labels = [variant.label for variant in variants()]
    assert labels[0] == CHAIN
    assert len(labels) == len(set(labels))
