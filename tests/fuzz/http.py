"""Odd HTTP requests to a server in this process: an answer without a stack trace or a closed connection, in
time, and right answers to good requests afterwards."""

import json
import socket
import struct
import threading
import time
import zlib
from typing import Any

import numpy as np

from sourceward.deploy.server import create_app, server_config
from sourceward.deploy.server_load import form
from sourceward.deploy.server_load import http as post
from sourceward.deploy.server_settings import Limits
from tests.fuzz.kinds import Finding, World, image_bytes
from tests.fuzz.mutate import VALUES, WORDS, damage, odd_json, pick

Random = np.random.Generator
KEY = "key"
LIMITS = Limits(body_bytes=2**18, total_bytes=2**20, pixels=100_000, samples=8, body_seconds=0.5, seconds=20)
PATHS = (
    "/",
    "/predict",
    "/explain",
    "/model",
    "/health",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/../x",
    "/%00",
)


class Served:
    """A model behind a real server on loopback, with a good request and its answer."""

    def __init__(self, model: Any, good: bytes, expected: Any) -> None:
        import uvicorn

        self.good, self.expected = good, expected
        app = create_app(model, LIMITS, KEY if model.kind == "features" else "", ["localhost"])
        server = uvicorn.Server(server_config(app, "127.0.0.1", 0, LIMITS))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.01)
        self.port = server.servers[0].sockets[0].getsockname()[1]

    def check(self) -> None:
        """A good request gets its answer, whatever came before it."""
        code, body = exchange(self.port, self.good)
        found = json.loads(body)["predictions"][0] if code == 200 else {}
        if (found.get("label"), found.get("probability")) != self.expected:
            raise Finding(f"a good request got {code} {body[:200]!r}")


def served(world: World) -> dict[str, Served]:
    """The servers of a world, started when they are first needed."""
    if not world.servers:
        from sourceward import load

        for name, (folder, inputs, _) in world.models.items():
            model = load(folder, "cpu")
            if name == "images":
                good = form(image_bytes(np.random.default_rng(0)))
            else:
                keyed = f"application/json\r\nX-API-Key: {KEY}"
                good = post(json.dumps({"features": inputs[:1].tolist()}).encode(), keyed)
            world.servers[name] = Served(model, good, None)
            found = json.loads(exchange(world.servers[name].port, good)[1])["predictions"][0]
            world.servers[name].expected = found["label"], found["probability"]
    return world.servers


def exchange(port: int, request: bytes, leave: bool = False) -> tuple[int, bytes]:
    """Send bytes; returns status and body of the first answer, (0, b"") for a closed connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(request)
            if leave:
                if len(request) % 2:  # a reset in place of an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return 0, b""
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except (ConnectionError, BrokenPipeError):
            return 0, b""
        except TimeoutError:
            raise Finding(f"no answer within 20 s to {request[:300]!r}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head.startswith(b"HTTP/") else (0, body)


def requests(world: World, rng: Random) -> str:
    """One odd request to one of the servers."""
    name = pick(rng, ("features", "images"))
    server = served(world)[name]
    request = _odd(name, server.good, rng)
    code, body = exchange(server.port, request, leave=rng.random() < 0.15)
    if code >= 500 or b"Traceback" in body or b'File "' in body:
        raise Finding(f"{code} {body[:500]!r} for {request[:500]!r}")
    if rng.random() < 0.2:
        server.check()
    return "used" if code == 200 else "refused"


def _odd(name: str, good: bytes, rng: Random) -> bytes:
    head, _, body = good.partition(b"\r\n\r\n")
    kind = int(rng.integers(9))
    if kind == 0:  # no HTTP at all
        return rng.bytes(int(rng.integers(1, 3000))) + (b"\r\n\r\n" if rng.random() < 0.5 else b"")
    if kind == 1:
        return damage(good, rng)
    if kind == 2:  # half a request
        return good[: int(rng.integers(1, len(good)))]
    if kind == 3:
        return _odd_head(head, rng) + b"\r\n\r\n" + body
    if kind == 4:  # another path or method, with all that follows
        method = pick(rng, ("GET", "PUT", "POST", "HEAD", "OPTIONS", "DELETE", "BREW"))
        return head.replace(b"POST /predict", f"{method} {pick(rng, PATHS)}".encode(), 1) + b"\r\n\r\n" + body
    if name == "images":
        data = damage(image_bytes(rng), rng) if kind < 7 else _huge_image(rng)
        return (
            form(data)
            if rng.random() < 0.7
            else post(damage(form(data), rng), "multipart/form-data; boundary=x")
        )
    keyed = f"application/json\r\nX-API-Key: {KEY if rng.random() < 0.9 else 'é'}"
    return post(_odd_body(body, rng), keyed)


def _odd_head(head: bytes, rng: Random) -> bytes:
    length = pick(rng, (b"-1", b"0", b"1", b"9" * 30, b"1e3", b"+5", b"", b"12, 12", b"0x10", "५".encode()))
    extra = pick(
        rng,
        (
            b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue",
            b"Content-Encoding: gzip", b"Connection: upgrade\r\nUpgrade: websocket", b"X: " + b"y" * 70_000,
            b"Host: elsewhere", b"Range: bytes=0-", b"X-API-Key: \xff\xfe", b"\r\n".join([b"A: b"] * 2000),
            b": nameless", b"Content-Type: multipart/form-data", b"Content-Type: \xff",
        ),
    )  # fmt: skip
    if rng.random() < 0.5:
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
        return b"\r\n".join([*lines, b"Content-Length: " + length])
    return head + b"\r\n" + extra


def _odd_body(body: bytes, rng: Random) -> bytes:
    deep = int(rng.choice([50, 2000, 100_000]))
    choices = (
        lambda: b"[" * deep,
        lambda: b'{"features":' * deep + b"1" + b"}" * deep,
        lambda: json.dumps({"features": [pick(rng, VALUES) for _ in range(3)]}, default=str).encode(),
        lambda: json.dumps({"features": [[pick(rng, VALUES)] * 5]}, default=str).encode(),
        lambda: json.dumps({"features": [[float(rng.normal()) * 1e300] * 5]}).encode(),
        lambda: json.dumps(odd_json(json.loads(body), rng), default=str).encode(),
        lambda: b'{"features": [[' + b"9" * deep + b"]]}",
        lambda: json.dumps({pick(rng, WORDS): pick(rng, WORDS)}).encode("utf-8", "replace"),
        lambda: b'{"features": "' + rng.bytes(200) + b'"}',
    )
    return pick(rng, choices)()


def _huge_image(rng: Random) -> bytes:
    """A PNG whose header states any size, with next to no data."""
    sides = (0, 1, 400, 5000, 70_000, 2**31 - 1)
    fields = struct.pack(
        ">IIBBBBB", pick(rng, sides), pick(rng, sides), 8, int(pick(rng, (0, 2, 3, 6))), 0, 0, 0
    )
    parts = (
        (b"IHDR", fields),
        (b"IDAT", zlib.compress(bytes(int(rng.integers(1, 200_000))))),
        (b"IEND", b""),
    )
    chunk = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk)
