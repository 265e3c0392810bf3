"""Who is in the swarm, and whom to ask: signed records in cells of a DHT, look-ups, distances.

In come postings of strangers and measured round trips; out go records that were checked, best first.
"""
