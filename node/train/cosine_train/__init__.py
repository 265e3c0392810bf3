"""Drafters for any target: `training` makes them (`zoo train`), and with `learning` they go on (`join --learn`).

A node finds both by the entry points of the distribution `cosine-train`; no text needs them.
"""
