"""The OpenAI-compatible gateway: HTTP requests in, generations of one shared swarm client out."""
