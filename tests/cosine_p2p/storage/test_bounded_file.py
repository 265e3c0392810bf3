"""Files from strangers are read up to a bound."""

import os
from pathlib import Path

import pytest

from cosine_p2p.storage.bounded_file import read_bounded, read_json


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"{}" + b" " * ((1 << 20) - 2))
    assert len(read_bounded(file, most_bytes=1 << 20)) == 1 << 20
    assert read_json(file, most_bytes=1 << 20) == {}
    os.truncate(file, (1 << 20) + 1)
    with pytest.raises(ValueError, match="longer than 1 MiB"):
        read_bounded(file, most_bytes=1 << 20)
    os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match="longer than 16 MiB"):
        read_json(file)
