"""A peer that takes part in the DHT: hivemind's daemon, its relay, and our cells in its DHT.

In come streams and calls of peers; out go `Stream`s of `transport.base` and postings.
"""
