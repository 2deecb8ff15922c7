"""Load test of the server on this machine; `sourceward bench serve` runs it.

It starts `sourceward serve`, finds the highest rate that the machine holds, and sends requests at that rate
for some minutes: good ones, whose answers are compared with `Model.predict`, and bad ones: clients that hang
up, send half a body, garbage, or a huge image. It returns counts, latencies and memory.
"""

import asyncio
import io
import json
import os
import random
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sourceward.data.decode import decode_image
from sourceward.data.loading import image_geometry
from sourceward.deploy.predictor import load_model
from sourceward.deploy.server_inputs import FIELD
from sourceward.model import Model
from sourceward.model.inputs import Failure, find_inputs

BOUNDARY = b"sourceward-load"
HUGE = (6000, 5000)
"""Pixels of the huge image: above the limit of the server, and small as a file."""
HOLDS_SECONDS = 0.5
"""A rate holds if 95 % of the answers take less, and none is refused."""
BAD = ("hang_up", "half_a_body", "garbage", "huge_image")


@dataclass
class Tally:
    """What happened to the requests."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Requests:
    samples: list[tuple[bytes, Any]]
    """Good requests, and what the model predicts."""
    huge: bytes


@dataclass(frozen=True)
class LoadPlan:
    """What is sent.

    Args:
        minutes: at the rate that holds.
        samples: different ones.
        bad: share of bad requests.
        probe_seconds: to find what four clients get one after the other.
        hold_seconds: that a rate must hold.
    """

    minutes: float = 10.0
    samples: int = 64
    bad: float = 0.1
    probe_seconds: float = 8.0
    hold_seconds: float = 15.0


def http(body: bytes, kind: str) -> bytes:
    """A POST /predict with a body."""
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def form(data: bytes) -> bytes:
    """A request with one file."""
    head = b'Content-Disposition: form-data; name="files"; filename="x.png"\r\n\r\n'
    body = b"--%s\r\n%s%s\r\n--%s--\r\n" % (BOUNDARY, head, data, BOUNDARY)
    return http(body, f"multipart/form-data; boundary={BOUNDARY.decode()}")


def read_samples(model: Model, paths: list[str], count: int) -> list[tuple[bytes, Any]]:
    """Requests of samples at equal distances from files that `predict` reads, and what the model predicts."""
    found = [item.value for item in find_inputs(model.kind, paths) if not isinstance(item.value, Failure)]
    picked = [found[i] for i in np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)]
    requests: list[tuple[bytes, Any]] = []
    for value in picked:
        if model.kind == "image":
            data = value.read()
            image = torch.from_numpy(decode_image(data, image_geometry(model.preprocessing)))
            expected = model.explain(model.adapt_images(image[None]))[0]
            requests.append((form(data), expected))
        else:
            given = value.tolist() if model.kind == "features" else value
            body = json.dumps({FIELD[model.kind]: [given]}).encode()
            row = np.stack([value]) if model.kind == "features" else [value]
            requests.append((http(body, "application/json"), model.predict(row)[0]))
    return requests


async def send(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and body of the answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def good(port: int, request: bytes, expected: Any, tally: Tally) -> None:
    """Send a sample and compare the answer."""
    start = perf_counter()
    try:
        code, body = await send(port, request)
    except (OSError, IndexError, ValueError, TimeoutError) as error:
        tally.counts[f"lost ({type(error).__name__})"] += 1
        return
    if code != 200:
        tally.counts[f"refused {code}" if code == 429 else f"lost ({code})"] += 1
        return
    tally.seconds.append(perf_counter() - start)
    found = json.loads(body)["predictions"][0]
    if found.get("label") != expected.label or abs(found["probability"] - expected.probability) > 1e-6:
        tally.wrong.append(f"{found.get('label')} {found.get('probability')} {expected}")
    tally.counts["answered"] += 1


async def bad(port: int, how: str, request: bytes, huge: bytes, tally: Tally) -> None:
    """Behave badly in one of the ways of `BAD`."""
    tally.counts[how] += 1
    if how in ("garbage", "huge_image"):
        try:
            code, body = await send(
                port, huge if how == "huge_image" else http(os.urandom(3000), "text/plain")
            )
        except (OSError, IndexError, ValueError, TimeoutError) as error:
            tally.counts[f"no answer to {how} ({type(error).__name__})"] += 1
            return
        if not 400 <= code < 500 or b"Traceback" in body:
            tally.counts[f"wrong status {code} for {how}"] += 1
        return
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request if how == "hang_up" else request[: len(request) // 2])
    await writer.drain()
    await asyncio.sleep(random.random() * 0.05)
    writer.transport.abort()


async def at_rate(port: int, plan: Requests, rate: float, seconds: float, bad_share: float) -> Tally:
    """Start requests at a fixed rate, whatever the answers do."""
    tally, tasks, begin, number = Tally(), set(), perf_counter(), 0
    while (now := perf_counter() - begin) < seconds:
        if number / rate > now:
            await asyncio.sleep(min(number / rate - now, 0.05))
            continue
        request, expected = random.choice(plan.samples)
        if random.random() < bad_share:
            work = bad(port, random.choice(BAD), request, plan.huge, tally)
        else:
            work = good(port, request, expected, tally)
            tally.counts["good"] += 1
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks, return_exceptions=True)
    return tally


async def find_rate(port: int, requests: Requests, plan: LoadPlan) -> float:
    """The highest rate, in steps of 10 % below what four clients get one after the other, that holds."""
    done, begin = 0, perf_counter()

    async def client() -> None:
        nonlocal done
        while perf_counter() - begin < plan.probe_seconds:
            await send(port, random.choice(requests.samples)[0])
            done += 1

    await asyncio.gather(*(client() for _ in range(4)))
    most = done / (perf_counter() - begin)
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3):
        tally = await at_rate(port, requests, share * most, plan.hold_seconds, 0.0)
        late = float(np.quantile(tally.seconds, 0.95)) if tally.seconds else float("inf")
        if tally.counts["answered"] == tally.counts["good"] and late < HOLDS_SECONDS:
            return share * most
    return 0.2 * most


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def measure_load(run: Path, inputs: list[str], plan: LoadPlan) -> dict[str, Any]:
    """Load a server of the model folder `run` with samples of `inputs`; returns what happened."""
    random.seed(0)
    return asyncio.run(_measure(run, inputs, plan))


async def _measure(run: Path, inputs: list[str], plan: LoadPlan) -> dict[str, Any]:
    """Start the server, load it, stop it in the middle of requests."""
    model = load_model(run, "cpu")
    requests = Requests(read_samples(model, inputs, plan.samples), form(_huge()))
    command = [sys.executable, "-m", "sourceward", "serve", str(run), "--port", "0", "--device", "cpu"]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        line = (await server.stdout.readline()).decode()
        port, memory = int(line.split(":")[2].split()[0]), []
        rate = await find_rate(port, requests, plan)
        print(f"{rate:.1f} requests/s for {plan.minutes:g} minutes", file=sys.stderr, flush=True)

        async def watch() -> None:
            while True:
                memory.append(round(memory_mb(server.pid), 1))
                await asyncio.sleep(10)

        watching = asyncio.create_task(watch())
        tally = await at_rate(port, requests, rate, 60 * plan.minutes, plan.bad)
        watching.cancel()
        head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        _, metrics = await send(port, head)
        last, picked = Tally(), [random.choice(requests.samples) for _ in range(16)]
        stopping = [asyncio.create_task(good(port, *pair, last)) for pair in picked]
        await asyncio.sleep(0.2)  # they are accepted by then
        server.send_signal(signal.SIGTERM)
        await asyncio.gather(*stopping)
        code = await server.wait()
    finally:
        if server.returncode is None:
            server.kill()
    return report(rate, tally, memory, metrics.decode()) | {
        "stopped_in_16_requests": {"counts": dict(last.counts), "wrong": len(last.wrong), "exit_code": code}
    }


def report(rate: float, tally: Tally, memory: list[float], metrics: str) -> dict[str, Any]:
    """The results as JSON values."""
    lost = sum(count for name, count in tally.counts.items() if name.startswith("lost"))
    quantiles = np.quantile(tally.seconds or [float("nan")], [0.5, 0.95, 0.99, 1.0])
    times = dict(zip(("p50", "p95", "p99", "max"), (1000 * quantiles).round(1).tolist()))
    batch = dict(re.findall(r"sourceward_batch_samples_(sum|count) ([\d.]+)", metrics))
    return {
        "requests_per_second": round(rate, 2),
        "lost": lost,
        "wrong": len(tally.wrong),
        "first_wrong": tally.wrong[:3],
        "counts": dict(sorted(tally.counts.items())),
        "milliseconds": times,
        "samples_per_batch": round(float(batch["sum"]) / max(float(batch["count"]), 1), 2) if batch else None,
        "memory_mb": {
            "start": memory[0],
            "after_a_minute": memory[min(6, len(memory) - 1)],
            "end": memory[-1],
            "most": max(memory),
            "every_10_s": memory,
        },
        "note": "clients and server share the cores",
    }


def _huge() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", HUGE).save(file, "PNG")
    return file.getvalue()
