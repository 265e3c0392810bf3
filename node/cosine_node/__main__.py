"""`python -m cosine_node` is `cosine-node`."""

from cosine_node.cli import main

main()
