"""The monitor in the terminal: `cosine-tui`."""
