"""Widgets draw lines and take keys; they know nothing of the network."""
