"""Who is believed: rules of audits, evidence, mandates, membership, bans, budgets, what peers have shown.

In come signed statements and the outcome of calls; out go verdicts about peers. No network.
"""
