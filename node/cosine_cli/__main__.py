"""Runs the command `cosine` as `python -m cosine_cli`."""

from cosine_cli.start import ask

ask()
