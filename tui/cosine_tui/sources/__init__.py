"""Where pictures come from: a real network or a simulated swarm."""
