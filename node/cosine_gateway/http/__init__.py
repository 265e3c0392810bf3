"""The gateway's HTTP server: routes, middleware and the socket."""
