"""Third-party clients, each doing its jobs at a gateway over a swarm: `python -m tests.clients`."""
