"""The rows of the ablation follow from the options that exist."""

from dataclasses import asdict
from itertools import pairwise
from typing import Any

from cosine_lab.experiments.ablated import AblatedOptions
from cosine_lab.experiments.ablation import CHAIN, CUMULATIVE, PARTS, SINGLE, Variant, variants
from cosine_lab.experiments.entrants import NOT_OF_STRATEGIES, POLICIES, SHIPPED, SHIPS
from cosine_lab.simulation.scenario import Scenario

ADDED, LEFT_OUT = ([variant for variant in variants() if variant.order == order] for order in (CUMULATIVE, SINGLE))


def options_of(variant: Variant) -> AblatedOptions:
    return AblatedOptions(**{n: value for n, value in variant.choice.items() if n not in NOT_OF_STRATEGIES})


def settings(variant: Variant) -> dict[str, Any]:
    return {**asdict(options_of(variant)), **variant.scenario, **variant.choice}


def test_the_first_row_has_no_part_and_the_last_cumulative_one_all() -> None:
    first, last = ADDED[0], ADDED[-1]
    assert (options_of(first).drafters, options_of(first).width_nodes) == (1, 1)
    assert Scenario(**first.scenario).home == ""
    assert (options_of(last), last.scenario, last.choice) == (AblatedOptions(), SHIPPED, {"policy": SHIPS})


def test_every_row_differs_from_the_one_before_in_one_part() -> None:
    for before, after in pairwise(map(settings, ADDED)):
        assert sum(before[name] != after[name] for name in before) == 1


def test_what_is_left_out_alone_is_one_thing() -> None:
    whole = settings(ADDED[-1])
    for variant in LEFT_OUT:
        assert sum(settings(variant)[name] != whole[name] for name in whole) == 1
        assert variant.choice["policy"] in POLICIES


def test_labels_are_unique() -> None:
    labels = [variant.label for variant in variants()]
    assert labels[0] == CHAIN
    assert len(labels) == len(set(labels)) == 2 * len(PARTS) + 3
