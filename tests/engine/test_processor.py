"""The name of the processor, and its abilities by the flags that Linux reports."""

import os
from pathlib import Path

import pytest

from cosine_engine import processor


@pytest.mark.parametrize(
    ("flags", "abilities"),
    [
        ("amx_bf16", {"has_fast_bfloat16"}),
        ("avx512_bf16 avx512_fp16", {"has_fast_bfloat16", "has_fast_float16"}),
        ("avx2", set()),
        ("avx2 f16c fma", {"reads_float16"}),
        (None, set()),
    ],
)
def test_the_processor_is_named_with_its_abilities(
    flags: str | None, abilities: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "cpuinfo"
    if flags is not None:
        info.write_text(f"processor\t: 0\nmodel name\t: A Fast One\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processor, "CPU_INFO", info)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    name = processor.processor_name()
    assert name == "A Fast One, 2 cores" if flags else name.endswith(", 2 cores")
    known = ("has_fast_bfloat16", "has_fast_float16", "reads_float16")
    assert {ability for ability in known if getattr(processor, ability)()} == abilities
