"""The lines between stages are as fast as most of the last passes came over them."""

from cosine_node.chains.link_speeds import LEAST_BYTES, SAMPLES, UNKNOWN_BYTES_PER_S, LinkSpeeds
from cosine_node.chains.stage_speeds import FORGOTTEN_S

PAIR = ("a", "b")


def test_a_line_is_as_fast_as_the_median_of_what_was_measured() -> None:
    links = LinkSpeeds()
    for seconds in (1.0, 1.0, 9.0):
        links.note(PAIR, size_bytes=1_000_000, seconds=seconds, now_s=0.0)
    assert links.bytes_per_s(PAIR, now_s=1.0) == 1e6
    assert links.bytes_per_s(("b", "a"), now_s=1.0) == UNKNOWN_BYTES_PER_S
    for _ in range(SAMPLES):
        links.note(PAIR, size_bytes=1_000_000, seconds=4.0, now_s=1.0)
    assert links.bytes_per_s(PAIR, now_s=2.0) == 250_000


def test_what_is_too_short_to_be_timed_or_long_ago_does_not_count() -> None:
    links = LinkSpeeds()
    links.note(PAIR, size_bytes=LEAST_BYTES - 1, seconds=0.001, now_s=0.0)
    links.note(PAIR, size_bytes=LEAST_BYTES, seconds=0.0, now_s=0.0)
    assert links.bytes_per_s(PAIR, now_s=0.0) == UNKNOWN_BYTES_PER_S
    links.note(PAIR, size_bytes=LEAST_BYTES, seconds=1.0, now_s=0.0)
    assert links.bytes_per_s(PAIR, now_s=FORGOTTEN_S + 1) == UNKNOWN_BYTES_PER_S
