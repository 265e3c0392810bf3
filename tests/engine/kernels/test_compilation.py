"""Compiled kernels are those of the present sources."""

from pathlib import Path
from typing import Any

from numba import config

from cosine_engine.kernels.compilation import cache_folder
from cosine_engine.kernels.elements import exponential


def test_a_change_of_any_source_leaves_the_compiled_kernels_of_all(tmp_path: Path) -> None:
    engine, folders = tmp_path / "engine", []
    (engine / "kernels").mkdir(parents=True)
    for changed in ("kernels/a.py", "kernels/b.py", "kv_pool.py"):
        for name in ("kernels/a.py", "kernels/b.py", "kv_pool.py"):
            (engine / name).write_text(f"CHANGED = {name == changed}")
        folders.append(cache_folder(engine, within=tmp_path))
        assert folders[-1] == cache_folder(engine, within=tmp_path)
    assert len({*folders}) == 3


def test_kernels_are_kept_there() -> None:
    kernel: Any = exponential
    assert Path(kernel.stats.cache_path).is_relative_to(config.CACHE_DIR)
