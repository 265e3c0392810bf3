"""The `cosine-node` command: parsing and printing only; every subcommand imports what it needs when it runs."""

from cosine_node.cli.app import main

__all__ = ["main"]
