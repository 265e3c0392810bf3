"""The wire of CoSine P2P: messages, codec, framing, digests, identity, signed records, limits, errors.

Pure: no I/O, no clock, no randomness of its own. `docs/protocol.md` is the normative text.
"""
