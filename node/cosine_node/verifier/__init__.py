"""The verifier: live trees of its requests, and a step loop that never waits for the network."""
