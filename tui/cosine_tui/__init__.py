"""The monitor in the terminal, `cosine-tui`: in come snapshots of a swarm, out go prompts and cancellations."""
