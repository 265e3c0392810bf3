"""The bounded map: the newest values win, and the oldest are forgotten first."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.storage.memory import Remembered

MOST = 4
FORGOTTEN_S = 10.0
NOTES = st.lists(st.tuples(st.integers(0, 8), st.integers(), st.floats(0, 5)))


@given(NOTES)
def test_it_holds_the_latest_values_of_the_last_few_keys(notes: list[tuple[int, int, float]]) -> None:
    memory, now_s = Remembered[int, int](MOST, forgotten_s=FORGOTTEN_S), 0.0
    latest: dict[int, tuple[int, float]] = {}
    for key, value, later_s in notes:
        now_s += later_s
        memory.note(key, value, now_s)
        latest.pop(key, None)
        latest[key] = value, now_s
    kept = list(latest.items())[-MOST:]
    expected = [(key, value) for key, (value, at_s) in kept if now_s - at_s < FORGOTTEN_S]
    assert memory.items(now_s) == expected
    assert {key: memory.get(key, now_s) for key in range(9)} == dict.fromkeys(range(9)) | dict(expected)
