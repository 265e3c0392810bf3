"""Drafters for any target (`zoo train`). A node finds the command by the entry point of `cosine-train`."""
