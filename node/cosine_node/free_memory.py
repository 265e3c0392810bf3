"""The memory of this machine that programs could still get."""

from contextlib import suppress
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")
"""The control group of a container, as it sees itself (cgroup v2)."""


def free_memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Memory that the machine has left, or the container if that is less; None where the system does not say."""
    try:
        lines = meminfo.read_text("ascii").splitlines()
        free_bytes = 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    # A container without a limit says "max", which is no number.
    with suppress(OSError, ValueError, KeyError):
        limit_bytes = int((cgroup / "memory.max").read_text("ascii"))
        used_bytes = int((cgroup / "memory.current").read_text("ascii"))
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text("ascii").splitlines())
        # What was only read from files is given back when others want it.
        used_bytes -= int(counts["inactive_file"])
        free_bytes = min(free_bytes, max(0, limit_bytes - used_bytes))
    return free_bytes
