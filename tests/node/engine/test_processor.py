"""What is known of the processor."""

import os
from pathlib import Path

import pytest

from cosine_node.engine import processor
from cosine_node.engine.processor import (
    has_fast_bfloat16,
    has_fast_float16,
    has_matrix_units,
    processor_name,
    reads_float16,
)


def test_the_processor_is_named_and_what_it_is_good_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Fast One\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\n")
    monkeypatch.setattr(processor, "CPU_INFO", info)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert processor_name() == "A Fast One, 2 cores"
    assert has_fast_bfloat16()
    assert has_matrix_units()
    assert not has_fast_float16()
    info.write_text("model name\t: A Fair One\nflags\t\t: fpu avx512_bf16 avx512_fp16\n")
    assert has_fast_float16()
    assert has_fast_bfloat16()
    assert not has_matrix_units()
    info.write_text("model name\t: An Old One\nflags\t\t: fpu avx2\n")
    assert not has_fast_bfloat16()
    assert not has_matrix_units()
    assert not reads_float16()
    info.write_text("model name\t: A Usual One\nflags\t\t: fpu avx2 f16c fma\n")
    assert reads_float16()
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "none")
    assert processor_name().endswith(", 2 cores")
    assert not reads_float16()
    assert not has_fast_bfloat16()
