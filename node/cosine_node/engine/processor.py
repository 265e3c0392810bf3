"""The processor of this machine: its name, and what it is good at. Needs no PyTorch."""

import os
from pathlib import Path
from typing import Final

CPU_INFO: Final = Path("/proc/cpuinfo")
FAST_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""A processor with one of these multiplies bfloat16 as fast as float32 or faster; others emulate it."""
CARDS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices of Linux that are there with a card of NVIDIA or AMD, or one that Windows shares with it."""
FAST_FLOAT16: Final = frozenset({"avx512_fp16", "amx_fp16"})
"""The same of float16."""


def has_fast_bfloat16() -> bool:
    """True if the processor is known to compute fast in bfloat16."""
    return not FAST_BFLOAT16.isdisjoint(_flags())


def has_fast_float16() -> bool:
    """True if the processor is known to compute fast in float16."""
    return not FAST_FLOAT16.isdisjoint(_flags())


def reads_float16() -> bool:
    """True if the processor is known to have what PyTorch's products with weights in float16 take (FBGEMM)."""
    return _flags() >= {"avx2", "f16c", "fma"}


def has_card() -> bool:
    """True if Linux shows a graphics card that PyTorch or llama.cpp could compute on."""
    return any(map(os.path.exists, CARDS))


def has_matrix_units() -> bool:
    """True if the processor multiplies tiles of bfloat16."""
    return "amx_bf16" in _flags()


def processor_name() -> str:
    """What the system calls this machine's processor."""
    names = _cpu_values("model name")
    return f"{names[0] if names else os.uname().machine}, {os.cpu_count()} cores"


def _flags() -> frozenset[str]:
    return frozenset(flag for value in _cpu_values("flags") for flag in value.split())


def _cpu_values(key: str) -> list[str]:
    """The values of a key in what Linux tells of its processors."""
    try:
        lines = CPU_INFO.read_text("utf-8").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
