"""Stages on the network: what a node does that holds some layers of a model, and what a head does with several."""
