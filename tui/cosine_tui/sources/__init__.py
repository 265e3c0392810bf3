"""Where snapshots come from: a real network or a simulated swarm."""
