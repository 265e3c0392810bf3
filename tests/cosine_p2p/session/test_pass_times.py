"""Tests of the pass times of a request."""

from cosine_p2p.session.pass_times import LATEST_PASSES, ReportedPasses
from cosine_protocol.verify import PassStats


def noted(*passes: tuple[int, int], is_first: bool = False) -> ReportedPasses:
    times = ReportedPasses()
    for nodes, pass_us in passes:
        times.note(PassStats(nodes, 0, pass_us), is_first=is_first)
    return times


def test_before_any_pass_and_after_the_prompts_alone_nothing_is_known() -> None:
    assert noted().plain_s is None
    assert noted((0, 900_000), is_first=True).plain_s is None


def test_passes_without_drafts_tell_in_the_median() -> None:
    assert noted((0, 60_000), (8, 90_000), (0, 62_000), (0, 500_000)).plain_s == 0.062


def test_the_latest_passes_tell_how_it_is_now() -> None:
    assert noted((0, 60_000), *[(0, 80_000)] * LATEST_PASSES).plain_s == 0.08
