"""`sourceward serve RUN --port 8000`: an HTTP server with a web page."""

from typing import Annotated

import typer

from sourceward.cli.options import Device, NumSteps, RunPath, Tta, load_model


def serve(
    run: RunPath,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than loopback need --api-key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        str,
        typer.Option(
            envvar="SOURCEWARD_API_KEY",
            help="Key that requests must have in the header X-API-Key. Better set SOURCEWARD_API_KEY: other "
            "users of the machine can see a command line.",
        ),
    ] = "",
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest request, in MiB.")] = 16,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest image, in pixels.")] = 25_000_000,
    max_queue: Annotated[int, typer.Option(min=1, help="Samples that may wait; more get 429.")] = 512,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until a request gets 503.")] = 30.0,
    num_steps: NumSteps = None,
    tta: Tta = None,
    device: Device = "auto",
) -> None:
    """Serve a model over HTTP, with a web page at `/`.

    POST /predict takes images as files of a form, or JSON with `texts` or `features`, one or many. GET /model
    has the model card, /metrics the Prometheus metrics, /health whether it is up, /openapi.json the whole
    interface. Requests that wait are predicted together; an answer does not depend on the others.
    """
    from sourceward.deploy.server import serve as run_server
    from sourceward.deploy.server_settings import Limits

    limits = Limits(body_bytes=max_body_mb * 2**20, pixels=max_pixels, queue=max_queue, seconds=timeout)
    run_server(load_model(run, device, num_steps, tta), host, port, api_key, limits)
