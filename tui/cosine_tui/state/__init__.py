"""What the monitor knows and was asked, without a screen: snapshots, requests, the prompt line.

In come surveys and progress of requests; out go `Snapshot`s, and options of what the user has typed.
"""
