"""Nodes and clients in the networks that people have, which `cosine_lab.network` builds."""
