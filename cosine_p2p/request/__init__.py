"""What a program asks for and what it gets: options, their defaults, the prompt that others see, results.

In come values of a program, checked before anybody is asked; out go typed options and results.
"""
