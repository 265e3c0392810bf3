"""Open files of this process: each socket is one, and a server that has none left answers nobody."""

import logging
import resource
from contextlib import suppress
from typing import Final

LOG = logging.getLogger(__name__)

ENOUGH_FILES: Final = 65_536
"""More than any node has needed; some programs walk through all that they may open."""
FEW_FILES: Final = 1024
"""The usual soft limit, which some hundreds of peers and clients reach."""


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most to `ENOUGH_FILES`; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, wanted = (ENOUGH_FILES if each == resource.RLIM_INFINITY else each for each in (soft, hard))
    wanted = min(wanted, ENOUGH_FILES)
    if most < wanted:
        # Some systems allow less than they say.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            most = wanted
    if most < FEW_FILES:
        LOG.warning("only %d files may be open here, and newcomers are refused beyond: see `ulimit -n`", most)
    return most
