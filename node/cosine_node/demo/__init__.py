"""A swarm of processes on this machine, in which plain decoding, copying and `cosine` race."""
