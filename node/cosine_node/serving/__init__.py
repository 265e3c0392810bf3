"""Nodes from start to stop: a verifier, a drafter, a stage, a head, a bootstrap.

In come a node's options; out go its announcements, its status, and its services on a transport.
"""
