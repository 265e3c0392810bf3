"""Less likely paths are sent where no client's link carries them."""

from cosine_p2p.strategy.cosine import VERIFIER_RARITY, plan_cuts
from cosine_protocol.limits import MAX_RARITY


def test_a_coordinator_beside_the_verifier_passes_on_less_likely_paths() -> None:
    here, elsewhere = plan_cuts(is_here=True), plan_cuts(is_here=False)
    assert here.min_path_probability < elsewhere.min_path_probability
    assert here.rarity == VERIFIER_RARITY <= MAX_RARITY


def test_a_client_leaves_the_cut_to_drafters() -> None:
    assert plan_cuts(is_here=False).rarity is None


def test_what_one_drafter_sends_is_passed_on_even_where_another_thinks_little_of_it() -> None:
    here = plan_cuts(is_here=True)
    assert here.rarity is not None and 0.5 / here.rarity >= here.min_path_probability
