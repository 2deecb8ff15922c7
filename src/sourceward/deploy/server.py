"""The server: `/predict`, `/explain`, `/model`, `/health`, `/metrics`, and a web page at `/`.

A request is received and read on its own (`server_guard`, `server_inputs`); its samples wait in one queue
(`server_queue`), and one thread predicts whatever waits (`server_answers`).
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import sourceward
from sourceward._util.errors import InputError
from sourceward.data.decode import available_cores
from sourceward.deploy.export_samples import graph_inputs, stored_samples
from sourceward.deploy.server_answers import Request, answer, named_answer
from sourceward.deploy.server_guard import Guard, Refused, head_in_time
from sourceward.deploy.server_inputs import FIELD, Sample, check_count, read_image, read_json
from sourceward.deploy.server_queue import Batcher, Full
from sourceward.deploy.server_settings import Limits, Metrics
from sourceward.model import Model
from sourceward.model.card import model_card
from sourceward.model.file import describe_model
from sourceward.model.inputs import Failure

PAGE = Path(__file__).with_name("page.html")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
BUSY = Refused(429, "The queue is full. Try again soon.", {"retry-after": "1"})


class Service:
    """A model with its queue: reads requests and answers them.

    Args:
        model: see `load`.
        limits: of requests.
        metrics: to count in.
    """

    def __init__(self, model: Model, limits: Limits, metrics: Metrics) -> None:
        self.model, self.limits, self.metrics = model, limits, metrics
        self.readers = ThreadPoolExecutor(available_cores(), thread_name_prefix="read")
        self.batcher = Batcher(self._answer, limits.queue, limits.batch)
        metrics.queue.set_function(lambda: len(self.batcher))

    def _answer(self, requests: list[Request]) -> list[dict[str, Any]]:
        self.metrics.batches.observe(len(requests))
        return answer(self.model, requests)

    async def read(self, request: Any) -> list[Sample]:
        """The samples of a request: files of a form, or JSON."""
        loop = asyncio.get_running_loop()
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            body = await request.body()
            return await loop.run_in_executor(self.readers, read_json, body, self.model, self.limits)
        if self.model.kind != "image":
            raise Refused(415, f"This model reads {FIELD[self.model.kind]}: send JSON, not files.")
        async with request.form(max_files=self.limits.samples + 1, max_fields=16) as form:
            files = [value for _, value in form.multi_items() if hasattr(value, "read")]
            check_count(len(files), self.limits)
            if not files:
                raise Refused(400, "Expected one image file or more in the field `files`, but got none.")
            named = [(file.filename or str(number), await file.read()) for number, file in enumerate(files)]
        read = partial(read_image, model=self.model, limits=self.limits)
        jobs = [loop.run_in_executor(self.readers, read, *pair) for pair in named]
        return list(await asyncio.gather(*jobs))

    async def predict(self, samples: Sequence[Sample], details: bool = False) -> list[dict[str, Any]]:
        """An answer for each sample; raises `Refused` where the queue is full or time is up."""
        readable = [sample.value for sample in samples if not isinstance(sample.value, Failure)]
        if not readable:
            raise Refused(422, f"Unreadable: {samples[0].value.reason}.")
        try:
            waiting = self.batcher.submit([Request(value, details) for value in readable])
        except Full:
            raise BUSY from None
        try:
            async with asyncio.timeout(self.limits.seconds):
                answers = iter(await asyncio.gather(*map(asyncio.wrap_future, waiting)))
        except TimeoutError:
            raise Refused(503, f"No answer within {self.limits.seconds:g} s. Try again later.") from None
        failed = [isinstance(sample.value, Failure) for sample in samples]
        found = [named_answer(s, None if bad else next(answers)) for s, bad in zip(samples, failed)]
        for own in found:
            self.metrics.samples.labels(own["status"]).inc()
        return found

    def warm_up(self) -> None:
        """Predict once, so that the first request does not wait for what is built on first use."""
        sample = stored_samples(self.model)
        value = graph_inputs(self.model, sample[:1])[0][0] if self.model.kind == "image" else sample[0]
        self.batcher.submit([Request(value)])[0].result()

    def stop(self) -> None:
        """Answer what waits, then end."""
        self.batcher.stop()
        self.readers.shutdown()


def create_app(
    model: Model, limits: Limits | None = None, api_key: str = "", hosts: Sequence[str] | None = None
) -> Any:
    """The ASGI application of a model.

    Args:
        model: see `load`.
        limits: of requests; the defaults when None.
        api_key: that requests must have; none when empty.
        hosts: names by which clients may call the server; any when None.
    """
    try:
        from fastapi import FastAPI
        from fastapi.responses import HTMLResponse, JSONResponse, Response
        from starlette.middleware.trustedhost import TrustedHostMiddleware
    except ImportError:
        raise InputError(
            "The server needs fastapi, uvicorn, python-multipart and prometheus-client: "
            "pip install 'sourceward[deploy]'."
        ) from None
    limits, metrics = limits or Limits(), Metrics()
    service = Service(model, limits, metrics)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(service.warm_up)
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="sourceward",
        version=sourceward.__version__,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from the internet
        redoc_url=None,
    )

    @app.exception_handler(Refused)
    def refused(_: Any, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.code, error.headers)

    config = describe_model(model)
    described = {"card": model_card(config), "limits": vars(limits), "config": config}

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> str:
        return PAGE.read_text(encoding="utf-8")

    @app.get("/health", summary="Whether the server is up")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="The model card, classes, sources, settings, and the limits of requests")
    def card() -> dict[str, Any]:
        return described

    @app.get("/metrics", summary="Prometheus metrics")
    def text() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    _add_predict(app, service)
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return Guard(app, limits, metrics, api_key)


def _add_predict(app: Any, service: Service) -> None:
    from fastapi import Request as HttpRequest

    body = {"requestBody": {"required": True, "content": _content(service.model)}}

    async def predict(request: HttpRequest) -> dict[str, Any]:
        return {"predictions": await service.predict(await service.read(request))}

    async def explain(request: HttpRequest) -> dict[str, Any]:
        samples = await service.read(request)
        if len(samples) > 1:
            raise Refused(413, f"Expected one sample to explain, but got {len(samples)}.")
        return (await service.predict(samples, details=True))[0]

    app.post("/predict", summary="Predict one sample or many", openapi_extra=body)(predict)
    app.post("/explain", summary="Predict one sample, with its copies and chain", openapi_extra=body)(explain)


def _content(model: Model) -> dict[str, Any]:
    """The request body in terms of OpenAPI."""
    item: dict[str, Any] = {"type": "array", "items": {"type": "number"}}
    if model.kind != "features":
        item = {"type": "string"} | ({"format": "binary"} if model.kind == "image" else {})
    schema = {"type": "object", "properties": {FIELD[model.kind]: {"type": "array", "items": item}}}
    kind = "multipart/form-data" if model.kind == "image" else "application/json"
    return {kind: {"schema": {**schema, "required": [FIELD[model.kind]]}}}


def serve(
    model: Model, host: str = "127.0.0.1", port: int = 8000, api_key: str = "", limits: Limits | None = None
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are answered first.

    Args:
        model: see `load`.
        host: an address other than loopback needs an API key.
        port: 0 for any that is free.
        api_key: see `create_app`.
        limits: see `create_app`.
    """
    if host not in LOOPBACK and not api_key:
        raise InputError(
            f"Expected an API key for --host {host}, which others can reach. Set SOURCEWARD_API_KEY or "
            "--api-key, or leave --host out."
        )
    limits = limits or Limits()
    _check_free(host, port)
    app = create_app(model, limits, api_key, LOOPBACK[:2] if host in LOOPBACK[:2] else None)
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.servers:
                port = self.servers[0].sockets[0].getsockname()[1]
                print(f"Serving on http://{host}:{port} (Ctrl-C stops)", flush=True)

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again after a graceful stop
    with suppress(KeyboardInterrupt):
        Server(server_config(app, host, port, limits)).run()


def _check_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"Expected an address to listen on, but {host}:{port} cannot be used: "
                f"{reason.removesuffix('.')}. Choose another --port; 0 takes a free one."
            ) from None


def server_config(app: Any, host: str, port: int, limits: Limits) -> Any:
    """The settings of uvicorn for an application of `create_app`."""
    import uvicorn

    return uvicorn.Config(
        app,
        host,
        port,
        http=head_in_time(limits.body_seconds),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=15,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=int(limits.seconds + limits.body_seconds),
    )
