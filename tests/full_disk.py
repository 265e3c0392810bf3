"""A disk that takes no more, for tests: the kernel refuses what makes a file larger than some bytes."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(*, file_bytes: int = 0) -> Iterator[None]:
    """Files of this process grow no further than so many bytes meanwhile."""
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, bounds[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
        signal.signal(signal.SIGXFSZ, ignored)
