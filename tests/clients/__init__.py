"""Clients of other makers, each doing its own job at a gateway over a swarm; `python -m tests.clients` tells."""
