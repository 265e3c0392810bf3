"""What stands for real things: a clock, links between cities, devices, models of which recorded texts are known.

In come seeds and profiles; out go transports, engines and a loop in virtual time, the same for equal seeds.
"""
