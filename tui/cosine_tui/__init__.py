"""The monitor in the terminal: `cosine-tui`.

In come snapshots of a swarm from sources; what the user types goes out to the source, as prompts and cancellations.
"""
