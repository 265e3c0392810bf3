"""The commands that training adds to `cosine-node`; each imports what it needs when it runs."""
