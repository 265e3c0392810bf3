"""A real or simulated swarm on its own event loop: prompts and cancellations come in, snapshots go out."""
