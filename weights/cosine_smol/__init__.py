"""Drafters and a draft head for SmolLM2-135M-Instruct: `zoo:smol-DOMAIN` and `zoo:smol-eagle` of CoSine P2P."""
