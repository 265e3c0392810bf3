"""A peer that only dials: py-libp2p in a thread of its own.

In come addresses; out go `Stream`s of `transport.base`. Takes no part in the DHT.
"""
