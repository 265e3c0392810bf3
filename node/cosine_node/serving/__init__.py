"""Running nodes: verifiers, drafters, stages, heads and bootstrap nodes."""
