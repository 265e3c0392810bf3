"""Drafters for any target, learned from the target's own answers."""
