"""Heads: chains over stages, which are found, measured, checked and replaced; plans of a model over machines."""
