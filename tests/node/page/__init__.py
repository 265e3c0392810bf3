"""The page: what it is made of, what it asks, and what a browser makes of it."""
