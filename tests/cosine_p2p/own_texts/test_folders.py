"""Tests of folders of texts: what is read, when it is read again, and what is kept."""

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_p2p.own_texts import folders
from cosine_p2p.own_texts.folders import MAX_FILE_BYTES, OwnTexts, forget_all, own_folder
from cosine_protocol.errors import UsageError

CODEC = LetterCodec()
TEXT = "TheQuickBrownFoxJumps"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(folders, "REST", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "texts"
    place.mkdir()
    return place


def opened(*places: Path, keeps_replies: bool = False) -> OwnTexts:
    own = OwnTexts(list(map(str, places)), keeps_replies=keeps_replies, offload=call_at_once)
    begin(own)
    return own


def begin(own: OwnTexts, codec: LetterCodec = CODEC) -> None:
    asyncio.run(own.begin(codec, "0" * 64))


def after(own: OwnTexts, begun: str) -> set[str]:
    """All that follows the longest match with a text, which must be a match of all of it."""
    index = own.index()
    assert index is not None
    matched, places = index.longest(CODEC.encode(begun), most=99)
    return {CODEC.decode(index.after(place, 99)) for place in places if matched == len(begun)}


def test_text_files_are_read_and_nothing_else(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "a.txt").write_text(f"{TEXT}:1")
    (folder / "b.md").write_text(f"{TEXT}:2")
    (folder / "image").write_bytes(f"{TEXT}:3".encode() + b"\0")
    (folder / "latin").write_bytes(f"{TEXT}:4\xff".encode("latin-1"))
    (folder / ".env").write_text(f"{TEXT}:5")
    (folder / "data").write_text(f"{TEXT}:6" + "0" * MAX_FILE_BYTES)
    for number, name in enumerate((".git", "node_modules"), 7):
        (folder / name).mkdir()
        (folder / name / "text").write_text(f"{TEXT}:{number}")
    (folder / "link").symlink_to(folder / ".env")
    assert after(opened(folder), TEXT) == {":1", ":2"}
    with pytest.raises(UsageError, match="no folder of texts"):
        OwnTexts([str(folder / "b.md")], keeps_replies=False, offload=call_at_once)


def test_only_changed_files_are_tokenised_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    encode_all = LetterCodec.encode_all

    def note(codec: LetterCodec, texts: Sequence[str]) -> list[Sequence[int]]:
        encoded.extend(texts)
        return encode_all(codec, texts)

    monkeypatch.setattr(LetterCodec, "encode_all", note)
    for name in "abc":
        (folder / name).write_text(f"{TEXT}:{name}")
    own = opened(folder)
    assert {text for text in encoded if not text.startswith('"')} == {f"{TEXT}:{name}" for name in "abc"}
    assert stat.S_IMODE(own_folder().stat().st_mode) == 0o700
    encoded.clear()
    assert after(opened(folder), TEXT) == {":a", ":b", ":c"} and not encoded
    (folder / "a").write_text(f"{TEXT}:changed")
    (folder / "b").unlink()
    begin(own)
    assert encoded == [f"{TEXT}:changed", f'"{TEXT}:changed"']
    assert after(own, TEXT) == after(opened(folder), TEXT) == {":changed", ":c"}
    assert len(encoded) == 2


def test_of_too_much_text_the_latest_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folders, "MAX_BYTES", 2 * len(TEXT) + 3)
    for number in range(3):
        file = folder / str(number)
        file.write_text(f"{TEXT}{number}")
        os.utime(file, (number, number))
    own = opened(folder)
    begin(own)
    assert after(own, TEXT) == {"1", "2"}
    assert [record.message for record in caplog.records] == [
        "The texts to draft from exceed 0 MB: the latest are used."
    ]


def test_a_text_is_also_drafted_from_in_json(folder: Path) -> None:
    (folder / "a").write_text(f"{TEXT}\n{TEXT}")
    assert after(opened(folder), f"{TEXT}\\n") == {TEXT}


@pytest.mark.parametrize("content", [b"", b"[]", b"{\n", b'["", []]\n12345678', b"["])
def test_a_broken_index_is_made_anew(folder: Path, content: bytes) -> None:
    (folder / "a").write_text(f"{TEXT}1")
    opened(folder)
    (kept,) = own_folder().iterdir()
    kept.write_bytes(content)
    assert after(opened(folder), TEXT) == {"1"}


def test_replies_are_kept_on_request_until_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unasked = opened(folder)
    unasked.keep(CODEC.encode(f"{TEXT}?"))
    assert after(opened(folder, keeps_replies=True), TEXT) == set()
    own = opened(keeps_replies=True)
    for end in "12":
        own.keep(CODEC.encode(f"{TEXT}{end}"))
    begin(own)
    assert after(own, TEXT) == after(opened(folder, keeps_replies=True), TEXT) == {"1", "2"}
    assert after(opened(folder), TEXT) == set()
    monkeypatch.setattr(folders, "MAX_REPLIES_BYTES", 8 * (len(TEXT) + 2))
    own.keep(CODEC.encode(f"{TEXT}3"))
    begin(own)
    assert after(own, TEXT) == {"3"}
    forget_all()
    assert not own_folder().exists()
    assert after(opened(keeps_replies=True), TEXT) == set()
