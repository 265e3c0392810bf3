"""The bounded map: the newest values win, the oldest are forgotten first, and invalid files are ignored."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.storage.memory import Remembered

MOST = 4
FORGOTTEN_S = 10.0
NOTES = st.lists(st.tuples(st.integers(0, 8), st.integers(), st.floats(0, 5)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=12,
)


def remembered() -> Remembered[int, int]:
    return Remembered(MOST, forgotten_s=FORGOTTEN_S)


def read(entry: list[Any]) -> tuple[int, int] | None:
    match entry:
        case [int(key), int(value)]:
            return key, value
    return None


@given(NOTES)
def test_it_holds_the_latest_values_of_the_last_few_keys_that_are_not_too_old(
    notes: list[tuple[int, int, float]],
) -> None:
    memory, now_s = remembered(), 0.0
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


@given(JSON | st.lists(st.lists(st.integers() | st.floats(), max_size=4), max_size=8))
def test_whatever_a_file_holds_nothing_but_sound_entries_is_taken_in(state: Any) -> None:
    memory = remembered()
    memory.restore(state, read, now_s=0.0, away_s=0.0)
    assert len(memory.items()) <= MOST
    for key, value in memory.items():
        assert any(isinstance(entry, list) and entry[:2] == [key, value] for entry in state)
