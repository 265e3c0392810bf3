"""Numbers as people read them."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_tui.looks import formatting


def test_times_have_units_and_no_more_digits_than_they_are_worth() -> None:
    shown = [formatting.milliseconds(value) for value in (None, 0.84, 9.94, 41.2, 999.4, 1234.0)]
    assert shown == ["–", "0.8 ms", "9.9 ms", "41 ms", "999 ms", "1.2 s"]
    assert [formatting.duration(s) for s in (-1, 4.9, 125, 11_220)] == ["0 s", "4 s", "2 min 05 s", "3 h 07 min"]


def test_things_are_counted() -> None:
    assert [formatting.counted(n, "node") for n in (0, 1, 2000)] == ["0 nodes", "1 node", "2,000 nodes"]


def test_rates_and_shares() -> None:
    assert [formatting.per_second(rate) for rate in (0, 5.84, 99.94, 1658.7)] == ["0.0", "5.8", "99.9", "1,659"]
    assert [formatting.percent(share) for share in (None, 0.0, 0.415)] == ["–", "0 %", "42 %"]


def test_a_clock_counts_from_the_start_unless_it_knows_the_time() -> None:
    assert formatting.clock(125.9, None) == "02:05"
    assert len(formatting.clock(0.0, 1_700_000_000.0)) == len("HH:MM:SS")


@given(st.floats(min_value=-1, max_value=2), st.integers(min_value=1, max_value=30))
def test_a_bar_has_its_width_and_shows_whatever_is_there(share: float, width: int) -> None:
    bar = formatting.bar(share, width)
    assert len(bar) == width
    assert (bar == formatting.GAP * width) == (share <= 0)
    assert bar == "█" * width or share < 1


def test_a_bar_without_width_is_nothing() -> None:
    assert formatting.bar(0.5, 0) == ""


def test_a_sparkline_shows_the_last_values_and_nothing_as_a_dot() -> None:
    assert formatting.sparkline((9, 0, 1, 4, 8), 4) == "·▁▄█"
    assert formatting.sparkline((), 4) == ""
    assert formatting.sparkline((16, 8), 9) == "█▄"


def test_a_chart_is_drawn_row_by_row() -> None:
    rows = [formatting.bars_in_row((0.0, 1.0, 2.0, 4.0), top=4.0, row=row, rows=2) for row in (1, 0)]
    assert rows == ["   █", " ▄██"]


def test_amounts_of_data() -> None:
    assert [formatting.file_size(count) for count in (0, 999, 64_200, 3_100_000)] == [
        "0 B",
        "999 B",
        "64.2 kB",
        "3.1 MB",
    ]


def test_peers_are_named_by_their_end() -> None:
    assert formatting.short_name("12D3KooWabcdef") == "abcdef"
