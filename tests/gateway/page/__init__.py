"""The page: its files, its API, and its views in a browser."""
