"""The rows of the ablation follow from the options that exist."""

from itertools import pairwise

import pytest

from cosine_node.bench import ablation
from cosine_node.bench.ablation import CHAIN, CUMULATIVE, PARTS, SINGLE, Part, variants
from cosine_node.bench.entrants import NOT_OF_STRATEGIES, POLICIES
from cosine_p2p.strategies.cosine import CosineOptions


def test_the_first_row_has_no_part_and_the_last_cumulative_one_all() -> None:
    cumulative = [variant for variant in variants() if variant.order == CUMULATIVE and not variant.skipped]
    first = CosineOptions(**cumulative[0].choice)
    assert cumulative[0].label == CHAIN
    assert (first.drafters, first.width_nodes) == (1, 1)
    assert CosineOptions(**cumulative[-1].choice) == CosineOptions()


def test_every_row_differs_from_the_one_before_in_one_part() -> None:
    choices = [variant.choice for variant in variants() if variant.order == CUMULATIVE and not variant.skipped]
    gone = [set(before) - set(after) for before, after in pairwise(choices)]
    assert all(len(one) == 1 for one in gone)


def test_what_is_left_out_alone_is_one_option_or_one_policy() -> None:
    single = [variant for variant in variants() if variant.order == SINGLE and not variant.skipped]
    assert all(len(variant.choice) == 1 for variant in single)
    for variant in single:
        assert variant.choice.get("policy", "ours") in POLICIES
        CosineOptions(**{k: v for k, v in variant.choice.items() if k not in NOT_OF_STRATEGIES})


def test_a_part_that_does_not_exist_or_is_off_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Part("a tree", "width_nodes", CosineOptions().width_nodes)
    monkeypatch.setattr(ablation, "PARTS", (Part("magic", "spells", False), off, PARTS[1]))
    reasons = {variant.label: variant.skipped for variant in variants()}
    assert reasons["+ magic"] == reasons["without magic"] == "there is no option spells"
    assert reasons["without a tree"] == "it is off anyway"
    assert reasons[f"without {PARTS[1].label}"] == ""


def test_labels_are_unique() -> None:
    labels = [variant.label for variant in variants()]
    assert len(labels) == len(set(labels))
