"""A whole swarm in processes on this machine: plain decoding and `cosine` side by side."""
