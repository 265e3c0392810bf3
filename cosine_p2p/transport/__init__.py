"""Addresses and gated streams of peers known by their keys come in; messages over shared links go out."""
