"""Bounded files in the state folder, and bounded maps."""
