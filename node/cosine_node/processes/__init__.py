"""Processes of our own that are asked one thing and end: what they do may crash or take any time."""
