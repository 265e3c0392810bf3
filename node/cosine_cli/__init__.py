"""The commands of a client, and the program that runs them and those of other distributions.

Input: arguments and a configuration file. Output: text or JSON, and an exit code.
"""
