"""Where snapshots come from: a real network or a simulated swarm.

In come prompts and cancellations; out goes a snapshot a few times a second, on the source's own event loop.
"""
