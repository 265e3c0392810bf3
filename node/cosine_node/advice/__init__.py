"""What this machine should give to a swarm, by what is measured here and what the swarm lacks."""
