"""The jobs of each client."""
