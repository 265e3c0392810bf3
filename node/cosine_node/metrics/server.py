"""`/metrics` over HTTP, for a Prometheus that scrapes it."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from cosine_protocol.errors import UsageError


@contextmanager
def serving_metrics(registry: CollectorRegistry, *, host: str, port: int) -> Iterator[int]:
    """Serve a registry in a thread of its own; the port, a free one for 0. Raises `UsageError` if it cannot."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"Metrics cannot be served on {host} port {port} ({reason}); choose another --metrics-port or "
            "--metrics-host."
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
