"""Runs the command `cosine-node` as `python -m cosine_node`."""

from cosine_node.cli import main

main()
