"""Real or simulated swarms on a separate event loop: they take prompts and cancellations, and send snapshots."""
