"""A client transport that only dials, on py-libp2p in its own thread."""
