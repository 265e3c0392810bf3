"""The wire protocol of CoSine P2P (docs/protocol.md), without I/O, clock or randomness."""
