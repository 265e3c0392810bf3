"""The commands of a client, and the program that runs them beside those of other distributions.

In come arguments and the tables of a configuration file; out go text or JSON and an exit code.
"""
