"""The volunteer node: engine, verifier, drafter, announcing, the embedded models, the `cosine-node` command."""
