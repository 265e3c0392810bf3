"""Free memory is that of the machine, or of the container if it may use less."""

from pathlib import Path

import pytest

from cosine_node.engine.pool_size import free_memory_bytes

MIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  90000 kB\nMemAvailable:       71680 kB\n")
    return file


def container(folder: Path, *, limit: str, used_bytes: int, read_bytes: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used_bytes}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {read_bytes}\n")
    return folder


def test_it_is_what_programs_could_still_get(tmp_path: Path, meminfo: Path) -> None:
    assert free_memory_bytes(meminfo, tmp_path / "none") == 70 * MIB
    meminfo.write_text("MemTotal:  9 kB\n")
    assert free_memory_bytes(meminfo, tmp_path) is None
    assert free_memory_bytes(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "free_bytes"),
    [(str(40 * MIB), 25 * MIB), (str(10 * MIB), 0), (str(400 * MIB), 70 * MIB), ("max", 70 * MIB), ("?", 70 * MIB)],
)
def test_a_container_may_have_less(tmp_path: Path, meminfo: Path, limit: str, free_bytes: int) -> None:
    # Of 20 MiB used 5 are files that were read, which are given back.
    group = container(tmp_path, limit=limit, used_bytes=20 * MIB, read_bytes=5 * MIB)
    assert free_memory_bytes(meminfo, group) == free_bytes
