"""The wire of CoSine P2P, of which docs/protocol.md is the normative text: no I/O, clock or randomness."""
