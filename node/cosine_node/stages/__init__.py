"""A part of a model on one machine: its service and engine, for the chains that heads set up."""
