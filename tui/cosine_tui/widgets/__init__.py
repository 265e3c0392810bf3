"""The widgets of the screen; they know nothing of the network.

In come what to draw and the keys; out go messages: a row was selected or chosen, a prompt or command entered.
"""
