"""The monitor in the terminal, `cosine-tui`: it shows snapshots of a swarm, and sends prompts and cancellations."""
