"""Imports of libraries whose protobufs collide: hivemind and py-libp2p both register `crypto.proto`."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf import descriptor_pool


@contextmanager
def private_protobufs() -> Iterator[None]:
    """Let what is imported inside register its protobufs in a pool of its own, and not warn of itself.

    Libraries imported so share a process with each other, and with a program's own copy of either, in any order.
    """
    default_pool, private_pool = descriptor_pool.Default, descriptor_pool.DescriptorPool()
    descriptor_pool.Default = lambda: private_pool
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        descriptor_pool.Default = default_pool
