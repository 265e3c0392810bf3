"""Runs the command `cosine-node` as `python -m cosine_node`."""

from cosine_cli.start import main

main()
