"""The laboratory: simulated swarms, published rivals, experiments, training. No part of the product imports it."""
