"""The gateway as a server: its routes, what every request passes, and the socket.

Options and a swarm client come in; requests are answered by the endpoints of the rooms below.
"""
