"""A learned name fits a record and is read as it was written; no other name is taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.directory.learned_name import LearnedName
from cosine_protocol.fields import MAX_NAME_BYTES


@given(st.text(min_size=1, max_size=300), st.integers(1, 10**6))
def test_a_learned_name_fits_a_record_and_is_read_as_it_was_told(model: str, number: int) -> None:
    told = str(LearnedName(model, number, "1a2b3c4d"))
    assert len(told.encode()) <= MAX_NAME_BYTES and told.endswith(f"+learned-{number}-1a2b3c4d")
    read = LearnedName.of(told)
    assert read is not None and (read.number, read.digest) == (number, "1a2b3c4d")
    assert model.startswith(read.model) and str(read) == told


def test_other_names_were_not_learned() -> None:
    endings = ("+learned-0-1a2b3c4d", "+learned-1-1A2B3C4D", "+learned-1-1a2b3c4d ", "")
    for name in (*(f"m{ending}" for ending in endings), "+learned-1-1a2b3c4d"):
        assert LearnedName.of(name) is None
