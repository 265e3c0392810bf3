"""The commands that the laboratory adds to `cosine-node`; each imports what it needs when it runs."""
