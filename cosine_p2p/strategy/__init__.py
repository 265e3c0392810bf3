"""Strategies choose drafters, the drafts to forward, and the number of drafters: events in, actions out. Pure."""
