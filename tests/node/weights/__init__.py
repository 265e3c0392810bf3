"""Weights between nodes."""
