"""The weights that serve after a kill at any moment: one complete version."""

import subprocess
import sys
from pathlib import Path

import pytest

from cosine_train.learning.versions import (
    KEPT,
    LIVE,
    MANIFEST,
    SHIPPED,
    DamagedVersion,
    LiveVersion,
    Versions,
    WeightVersion,
)
from tests.thoroughness import THOROUGH

SWITCHING = """
import os, signal, sys
from pathlib import Path
from cosine_train.learning.versions import LiveVersion, Versions
from tests.train.learning.test_versions import make

versions, deadly = Versions(Path(sys.argv[1])), int(sys.argv[2])
steps = 0

def step(event, arguments):
    # What changes a file system tells the interpreter before it does so.
    global steps
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
        steps += 1
        if steps == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(step)
made = make(versions, 5)
versions.switch(LiveVersion(5, made.digest, ("five",)))
versions.keep_newest(live=5)
steps = -1_000_000
print(made.digest)
"""


def make(versions: Versions, number: int) -> WeightVersion:
    folder = versions.begin(number)
    (folder / "gguf").mkdir()
    for name in ("config.json", "model.safetensors", "gguf/model.gguf"):
        (folder / name).write_bytes(f"{name} {number}".encode() * 100)
    return versions.finish(number)


def numbers_in(folder: Path) -> set[str]:
    return {path.read_bytes().split()[1][:1].decode() for path in folder.rglob("model*") if path.is_file()}


def test_a_version_serves_once_it_is_switched_to(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    assert versions.live() == (LiveVersion(SHIPPED), None)
    assert not list(tmp_path.iterdir()), "looking writes nothing"
    made = make(versions, 1)
    assert versions.live()[1] is None, "it is a candidate"
    assert made.digest != make(versions, 2).digest
    word = LiveVersion(1, made.digest, ("code", "math"))
    versions.switch(word)
    assert versions.live() == (word, made)
    versions.switch(LiveVersion(SHIPPED))
    assert versions.live()[1] is None


@pytest.mark.parametrize("damage", ["change", "cut", "remove", "add", "manifest", "folder"])
def test_a_version_that_is_not_whole_gives_way_to_the_newest_that_is(tmp_path: Path, damage: str) -> None:
    versions = Versions(tmp_path)
    for number in (1, 2, 3):
        made = make(versions, number)
    versions.switch(LiveVersion(3, made.digest, ("code",)))
    weights = made.folder / "gguf" / "model.gguf"
    match damage:
        case "change":
            weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        case "cut":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "remove":
            weights.unlink()
        case "add":
            (made.folder / "more").write_bytes(b"")
        case "manifest":
            (made.folder / MANIFEST).write_text("{")
        case "folder":
            made.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedVersion):
        versions.find(3)
    word, served = versions.live()
    assert served is not None
    assert (word.number, served.number, word.expertise) == (2, 2, ())
    for number in (1, 2):
        (versions.path(number) / "config.json").unlink()
    assert versions.live() == (LiveVersion(SHIPPED), None), "where none is whole"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": -1}', '{"version": "1"}', "[" * 100_000])
def test_a_damaged_word_counts_for_the_newest_version(tmp_path: Path, text: str) -> None:
    versions = Versions(tmp_path)
    made = make(versions, 1)
    versions.switch(LiveVersion(1, made.digest))
    (tmp_path / LIVE).write_text(text)
    assert versions.live() == (LiveVersion(1, made.digest), made)


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    for number in range(1, 8):
        make(versions, number)
        versions.keep_newest(live=2)
    assert versions.all() == [2, 5, 6, 7]
    assert len(versions.all()) == KEPT + 1


@pytest.mark.parametrize(
    "deadly",
    [
        pytest.param(n, marks=() if n in (5, 22) else THOROUGH if n in (13, 19, 30) else pytest.mark.soak)
        for n in range(1, 50)
    ],
)
def test_a_kill_before_any_step_leaves_one_of_two_versions_whole(tmp_path: Path, deadly: int) -> None:
    """SIGKILL before the file operation of that number in a switch from the fourth version to a fifth."""
    versions = Versions(tmp_path)
    before = [make(versions, number) for number in (1, 2, 3, 4)][-1]
    versions.switch(LiveVersion(4, before.digest, ("four",)))
    command = [sys.executable, "-c", SWITCHING, str(tmp_path), str(deadly)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (-9, 0), done.stderr
    word, served = versions.live()
    assert served is not None and served.number in (4, 5)
    assert numbers_in(served.folder) == {str(served.number)}
    if served.number == 4:
        assert (word.digest, word.expertise) == (before.digest, ("four",))
    else:
        assert word.expertise == ("five",)
    # It continues from there.
    versions.switch(LiveVersion(6, make(versions, 6).digest))
    versions.keep_newest(live=6)
    assert (versions.live()[1] or before).number == 6
