"""Is it the model? Asks an endpoint questions, and judges with the weights at hand what has answered.

In: an address, a model's weights. Out: a signed report with a verdict and its error rates.
"""
