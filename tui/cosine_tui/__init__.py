"""The monitor in the terminal: `cosine-tui`.

In comes what sources see of a swarm, as snapshots; what the user types goes out to the source, as prompts and
cancellations. Nothing here speaks to the network but a source.
"""
