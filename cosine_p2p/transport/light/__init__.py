"""A peer that only dials, by py-libp2p in its own thread: in come addresses, out go `Stream`s."""
