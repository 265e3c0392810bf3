"""Suggestions of what this machine should run for a swarm, from its measurement and the swarm's needs."""
