"""Experiments that compare decisions on recorded generations, without a network and without models."""
