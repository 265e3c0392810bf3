"""The processor of this machine and its memory. Needs no PyTorch."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CPU_INFO: Final = Path("/proc/cpuinfo")
FAST_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of processors that multiply bfloat16 at least as fast as float32; others emulate it."""
CARDS: Final = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Linux device files of a card of NVIDIA or AMD, or one that Windows shares."""
FAST_FLOAT16: Final = frozenset({"avx512_fp16", "amx_fp16"})
"""Flags of processors with fast float16."""


def has_fast_bfloat16() -> bool:
    """Return True if the processor is known to compute fast in bfloat16."""
    return not FAST_BFLOAT16.isdisjoint(_flags())


def has_fast_float16() -> bool:
    """Return True if the processor is known to compute fast in float16."""
    return not FAST_FLOAT16.isdisjoint(_flags())


def reads_float16() -> bool:
    """Return True if the processor is known to have instructions that read float16."""
    return _flags() >= {"avx2", "f16c", "fma"}


def has_card() -> bool:
    """Return True if Linux shows a graphics card that PyTorch or llama.cpp could compute on."""
    return any(map(os.path.exists, CARDS))


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library supports that (malloc_trim(3) of glibc)."""
    with suppress(OSError, AttributeError, ValueError):
        ctypes.CDLL(None).malloc_trim(0)


def processor_name() -> str:
    """Return the system's name of this machine's processor."""
    names = _cpu_values("model name")
    return f"{names[0] if names else os.uname().machine}, {os.cpu_count()} cores"


def _flags() -> frozenset[str]:
    return frozenset(flag for value in _cpu_values("flags") for flag in value.split())


def _cpu_values(key: str) -> list[str]:
    """Return the values of a key in Linux's description of the processors."""
    try:
        lines = CPU_INFO.read_text("utf-8").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() == key]
