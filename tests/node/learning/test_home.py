"""Whose folder is whose, and the names of learned weights as they are told and read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.learning.home import LearnedName, LearnerHome, find_homes, home_folder, write_about
from cosine_node.learning.versions import SHIPPED, LiveVersion
from cosine_protocol.limits import MAX_EXPERTISE, MAX_NAME_BYTES

KEYS = {"peer_id": "peer", "model_name": "zoo:draft-code", "content_digest": b"c" * 32, "target_digest": b"t" * 32}


@pytest.mark.parametrize("changed", KEYS)
def test_each_identity_model_and_target_has_its_own(changed: str) -> None:
    other = KEYS | {changed: b"x" * 32 if isinstance(KEYS[changed], bytes) else "other"}
    assert home_folder(**KEYS) == home_folder(**KEYS) != home_folder(**other)  # type: ignore[arg-type]  # mixed values
    assert home_folder(**KEYS).name.startswith("zoo-draft-code-")  # type: ignore[arg-type]  # the same


def test_a_name_of_any_length_stays_in_its_folder() -> None:
    folder = home_folder(**(KEYS | {"model_name": "../../" + "ä/" * 300}))  # type: ignore[arg-type]  # the same
    assert folder.parent == home_folder(**KEYS).parent  # type: ignore[arg-type]  # the same
    assert len(folder.name) < 64


def test_a_record_tells_the_version_and_the_domains_added() -> None:
    home = LearnerHome(
        folder=Path(), model_name="m", shipped=Path(), kind=None, target=Path(), expertise=("code", "math")
    )
    live = LiveVersion(2, "ab" * 32, ("medical", "code"))
    assert (home.name_of(live), home.announced(live)) == ("m+learned-2-abababab", ("code", "math", "medical"))
    shipped = LiveVersion(SHIPPED)
    assert (home.name_of(shipped), home.announced(shipped)) == ("m", ("code", "math"))
    many = LiveVersion(1, "", tuple(map(str, range(30))))
    assert len(home.announced(many)) == MAX_EXPERTISE


def test_only_folders_of_learners_are_found(tmp_path: Path) -> None:
    assert list(find_homes(tmp_path / "nowhere")) == []
    (tmp_path / "other").mkdir()
    (tmp_path / "file").write_text("")
    write_about(tmp_path / "mine", peer_id="p", model_name="m", target_name="t")
    assert list(find_homes(tmp_path)) == [(tmp_path / "mine", {"peer_id": "p", "model": "m", "target": "t"})]


@given(st.text(min_size=1, max_size=300), st.integers(1, 10**6))
def test_it_fits_a_record_and_is_read_as_it_was_told(model: str, number: int) -> None:
    told = str(LearnedName(model, number, "1a2b3c4d"))
    assert len(told.encode()) <= MAX_NAME_BYTES
    assert told.endswith(f"+learned-{number}-1a2b3c4d")
    read = LearnedName.of(told)
    assert read is not None and (read.number, read.digest) == (number, "1a2b3c4d")
    assert model.startswith(read.model) and str(read) == told


@given(st.text(max_size=80))
def test_whatever_a_peer_calls_itself_is_read(name: str) -> None:
    read = LearnedName.of(name)
    assert read is None or name.startswith(read.model)


@pytest.mark.parametrize(
    "name",
    [
        "zoo:draft-code",
        "m+learned-0-1a2b3c4d",
        "m+learned-1-1A2B3C4D",
        "m+learned-1-1a2b3c4d ",
        "+learned-1-1a2b3c4d",
    ],
)
def test_other_names_were_not_learned(name: str) -> None:
    assert LearnedName.of(name) is None
