"""Prometheus metrics of nodes and of generations."""

from cosine_node.metrics.generations import GenerationMetrics

__all__ = ["GenerationMetrics"]
