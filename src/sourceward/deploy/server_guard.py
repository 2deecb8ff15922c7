"""`Guard`: what every request passes before the application sees it, as ASGI middleware.

It checks the API key, receives the whole body within its limits of size and time, turns an exception into a
plain answer without a stack trace, and counts.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from sourceward.deploy.server_settings import Limits, Metrics

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN = ("/", "/health")
"""Paths that need no API key: the page itself, and whether the server is up."""

PATHS = ("/", "/health", "/metrics", "/model", "/predict", "/explain", "/openapi.json")

DISCARDED = 4
"""A body of up to so many times the limit is received, and not kept, so that its client can read the answer;
the connection of a larger one is closed at once."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; connect-src 'self'; img-src 'self' data: blob:; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
}

log = logging.getLogger("sourceward.serve")


class Refused(Exception):
    """An answer in place of the application's."""

    def __init__(self, code: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.code, self.detail, self.headers = code, detail, headers or {}


class HungUp(Exception):
    """The client left before its request was whole."""


class Guard:
    """See the module's text.

    Args:
        app: the application.
        limits: of bodies.
        metrics: to count in.
        api_key: none is needed when empty.
    """

    def __init__(self, app: Any, limits: Limits, metrics: Metrics, api_key: str = "") -> None:
        self.app, self.limits, self.metrics, self.api_key = app, limits, metrics, api_key
        self.bytes = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, code, held = perf_counter(), 0, [0]

        async def counted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        try:
            await self._guarded(scope, receive, counted, held)
        except HungUp:
            self.metrics.hung_up.inc()
            return
        except Refused as refused:
            await _answer(counted, refused)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if code == 0:
                await _answer(counted, Refused(500, "Internal error. The log of the server has the reason."))
        finally:
            self.bytes -= held[0]
        path = scope["path"] if scope["path"] in PATHS else "other"
        self.metrics.requests.labels(path, code).inc()
        self.metrics.seconds.labels(path).observe(perf_counter() - start)

    async def _guarded(self, scope: dict[str, Any], receive: Receive, send: Send, held: list[int]) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self._check_key(scope["path"], headers)
        if scope["method"] not in ("GET", "HEAD"):
            body = await self._body(receive, headers, held)
            receive = _replay(body, receive)
        await self.app(scope, receive, send)

    def _check_key(self, path: str, headers: dict[str, str]) -> None:
        if not self.api_key or path in OPEN:
            return
        given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self.api_key.encode()):
            raise Refused(401, "Expected the API key in the header X-API-Key, but it is missing or wrong.")

    async def _body(self, receive: Receive, headers: dict[str, str], held: list[int]) -> bytes:
        """The whole body; `held` counts its bytes for `total_bytes`."""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                return await self._parts(receive, headers.get("content-length", "0"), held)
        except TimeoutError:
            raise Refused(408, f"The body did not arrive within {self.limits.body_seconds:g} s.") from None

    async def _parts(self, receive: Receive, length: str, held: list[int]) -> bytes:
        most, seen, parts = self.limits.body_bytes, 0, []
        large = Refused(413, f"Expected a body of at most {most:,} bytes. Send fewer or smaller samples.")
        if not length.isdigit() or int(length) > DISCARDED * most:
            raise large
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise HungUp
            part = message.get("body", b"")
            seen += len(part)
            if max(seen, int(length)) <= most:
                held[0] += len(part)
                self.bytes += len(part)
                if self.bytes > self.limits.total_bytes:
                    raise Refused(429, "The server is busy. Try again soon.", {"retry-after": "1"})
                parts.append(part)
            elif seen > DISCARDED * most:
                raise large
            if not message.get("more_body"):
                if max(seen, int(length)) > most:
                    raise large
                return b"".join(parts)


def head_in_time(seconds: float) -> Any:
    """A protocol of uvicorn that closes a connection whose next request has no whole head by then.

    Without it, clients that send a few bytes and wait could hold all connections for ever.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class HeadInTime(H11Protocol):
        waits: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def _watch(self) -> None:
            if self.waits is None and (self.cycle is None or self.cycle.response_complete):
                self.waits = self.loop.call_later(seconds, self._end, self.cycle)

        def _end(self, last: Any) -> None:
            self.waits = None
            if self.cycle is last:
                self.transport.close()
            else:
                self._watch()

    return HeadInTime


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then what comes after it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message


async def _answer(send: Send, refused: Refused) -> None:
    body = json.dumps({"detail": refused.detail}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    pairs = [(name.encode(), value.encode()) for name, value in {**headers, **refused.headers}.items()]
    await send({"type": "http.response.start", "status": refused.code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
