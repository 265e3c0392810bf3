"""What each client is asked to do. It runs under the client's own Python, or beside the client."""
