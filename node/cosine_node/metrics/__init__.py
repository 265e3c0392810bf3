"""Prometheus metrics of nodes."""
