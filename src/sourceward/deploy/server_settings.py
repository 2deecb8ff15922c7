"""Limits of the server, and its metrics."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """What the server accepts.

    Args:
        body_bytes: of one request.
        total_bytes: of all request bodies in memory.
        pixels: of one image, before it is resized.
        samples: of one request.
        queue: samples that wait; more are answered 429.
        batch: samples that are predicted together.
        body_seconds: to receive a request.
        seconds: to answer it after that.
        connections: open at a time.
    """

    body_bytes: int = 16 * 2**20
    total_bytes: int = 256 * 2**20
    pixels: int = 25_000_000
    samples: int = 128
    queue: int = 512
    batch: int = 32
    body_seconds: float = 20.0
    seconds: float = 30.0
    connections: int = 512


class Metrics:
    """Prometheus metrics of one server."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

        self.registry: Any = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        named: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "sourceward_requests", "Requests by path and status code.", ["path", "code"], **named
        )
        self.seconds = Histogram(
            "sourceward_request_seconds",
            "Time to answer a request.",
            ["path"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            **named,
        )
        self.samples = Counter("sourceward_samples", "Samples by status.", ["status"], **named)
        self.batches = Histogram(
            "sourceward_batch_samples", "Samples predicted together.", buckets=(1, 2, 4, 8, 16, 32), **named
        )
        self.queue = Gauge("sourceward_queue_samples", "Samples that wait.", **named)
        self.hung_up = Counter(
            "sourceward_hung_up", "Clients that left before the request was whole.", **named
        )

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
