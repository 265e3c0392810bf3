"""Whose folder is whose, and the names of learned weights."""

from pathlib import Path

import pytest

from cosine_node.learning.home import LearnerHome, find_homes, home_folder, write_about
from cosine_node.learning.versions import SHIPPED, LiveVersion
from cosine_protocol.limits import MAX_EXPERTISE

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
