"""The limit of open files: each socket is one, and a server without free ones cannot answer."""

import logging
import resource
from contextlib import suppress
from typing import Final

LOG = logging.getLogger(__name__)

ENOUGH_FILES: Final = 65_536
"""More than any node has needed; some programs iterate over all possible descriptors."""
FEW_FILES: Final = 1024
"""The usual soft limit, which a few hundred peers and clients reach."""


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most to `ENOUGH_FILES`, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, wanted = (ENOUGH_FILES if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    wanted = min(wanted, ENOUGH_FILES)
    if most < wanted:
        # Some systems allow less than the hard limit.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            most = wanted
    if most < FEW_FILES:
        LOG.warning("only %d files may be open here, and newcomers are refused beyond: see `ulimit -n`", most)
    return most
