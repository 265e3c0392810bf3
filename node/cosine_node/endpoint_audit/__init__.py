"""Audits an endpoint: asks questions, and judges with a model's weights whether that model answered.

Input: an address, a model's weights. Output: a signed report with a verdict and its error rates.
"""
