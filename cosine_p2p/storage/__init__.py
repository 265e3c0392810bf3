"""Bounded files of the state folder and maps of others: JSON objects, values and keys in and out."""
