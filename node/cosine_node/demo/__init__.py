"""A swarm of processes on this machine, in which plain decoding, copying alone and `cosine` race."""
