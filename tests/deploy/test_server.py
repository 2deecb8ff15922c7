"""The server as a real process, with real clients: answers, limits, and a stop that loses nothing."""

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
from PIL import Image

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.adaptation.tta import lead
from sourceward.deploy.server import PAGE, create_app, serve, server_config
from sourceward.deploy.server_answers import details
from sourceward.deploy.server_load import BAD, LoadPlan, form, measure_load
from sourceward.deploy.server_load import http as post
from sourceward.deploy.server_queue import Batcher, Full
from sourceward.deploy.server_settings import Limits
from tests.tiny_runs import fit_tiny, tiny_features

KEY = "a secret"


def start(run: Path, *options: str, **environment: str) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-m", "sourceward", "serve", str(run), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    line = process.stdout.readline()
    assert line.startswith("Serving on "), line + process.stdout.read()
    return process, int(line.split(":")[2].split()[0])


def stop(process: subprocess.Popen) -> str:
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def images(tiny_run: Path) -> Iterator[int]:
    process, port = start(tiny_run, "--tta", "hflip", "--max-pixels", "100000", "--max-body-mb", "1")
    yield port
    assert "Traceback" not in stop(process)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, sw.Model]]:
    run = tmp_path_factory.mktemp("runs") / "features"
    model = fit_tiny(tiny_features(), run)
    process, port = start(run, SOURCEWARD_API_KEY=KEY)
    yield port, model
    stop(process)


def send(port: int, request: bytes) -> tuple[int, dict]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Traceback" not in body
    return int(head.split()[1]), json.loads(body)


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def png(seed: int, size: tuple[int, int] = (20, 16)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_an_answer_does_not_depend_on_its_batch(images: int, tiny_run: Path):
    """48 clients at once, whose samples wait together; each gets what the model predicts alone."""
    files = [png(seed) for seed in range(12)]
    model = sw.load(tiny_run, "cpu").with_tta("hflip")
    expected = [model.predict([Image.open(io.BytesIO(file))])[0] for file in files]
    with ThreadPoolExecutor(48) as clients:
        answers = list(clients.map(lambda n: send(images, form(files[n % 12])), range(48)))
    for number, (code, answer) in enumerate(answers):
        assert code == 200
        own, (found,) = expected[number % 12], answer["predictions"]
        assert (found["label"], found["probability"]) == (own.label, own.probability)
        assert found["energy_after"] == own.energy_after
        assert (found["trust"], found["agreement"]) == (own.trust, own.agreement)
    counts = dict(re.findall(r"sourceward_batch_samples_(sum|count) ([\d.]+)", get(images, "/metrics")[1]))
    assert float(counts["sum"]) > float(counts["count"]), "no two samples were ever predicted together"


def test_many_files_one_of_them_broken(images: int):
    boundary, parts = b"b", [png(0), b"not an image", png(1)]
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%d.png"\r\n\r\n%s\r\n'
    body = b"".join(head % (number, part) for number, part in enumerate(parts)) + b"--b--\r\n"
    code, answer = send(images, post(body, f"multipart/form-data; boundary={boundary.decode()}"))
    assert code == 200
    assert [own["status"] == "unreadable" for own in answer["predictions"]] == [False, True, False]
    assert answer["predictions"][1]["reason"] == "cannot identify image file"


@pytest.mark.parametrize(
    ("request_", "code", "why"),
    [
        (form(b"garbage"), 422, "Unreadable: cannot identify image file"),
        (form(b""), 422, "the file is empty"),
        (form(png(0, (400, 400))), 422, "160,000 pixels, and the limit is 100,000"),
        (form(b"x" * 2**21), 413, "at most 1,048,576 bytes"),
        (post(b"{}", "application/json"), 415, "multipart form"),
        (post(b"nonsense", "multipart/form-data; boundary=x"), 400, "multipart"),
        (post(b"--x--\r\n", "multipart/form-data; boundary=x"), 400, "one image file or more"),
        (post(b"", "multipart/form-data"), 400, "boundary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(images: int, request_: bytes, code: int, why: str):
    found, answer = send(images, request_)
    assert found == code
    assert why in answer["detail"]


def test_clients_that_leave_do_no_harm(images: int):
    whole = form(png(0))
    for part in (whole[:20], whole[: len(whole) // 2], whole):
        with socket.create_connection(("127.0.0.1", images)) as connection:
            connection.sendall(part)
    assert send(images, whole)[0] == 200


def test_details_of_one_sample(images: int):
    code, answer = send(images, form(png(3)).replace(b"/predict", b"/explain", 1))
    assert code == 200
    assert [copy["name"] for copy in answer["copies"]] == ["image", "hflip"]
    assert all(copy["image"].startswith("data:image/webp;base64,") for copy in answer["copies"])
    assert [len(points) for points in answer["chain"]["points"].values()] == [3, 3]  # two steps
    assert 0 < answer["chain"]["variance"] <= 1.000001


def test_details_say_whether_the_cascade_uses_copies(tiny_run: Path):
    model = sw.load(tiny_run, "cpu").with_tta("hflip")
    image = torch.zeros(3, 16, 16, dtype=torch.uint8)
    sure = float(lead(model.with_tta("").adapt_images(image[None]).probabilities)[0])
    for thresholds, used in (((), True), ((sure,), False), ((sure + 1e-3,), True)):
        model.adapter.tta_, model.adapter.tta_thresholds_ = "hflip", thresholds
        assert details(model, image)["copies_used"] is used


def test_what_can_be_read(images: int, tiny_run: Path):
    assert get(images, "/health") == (200, '{"status":"ok"}')
    described = json.loads(get(images, "/model")[1])
    assert described["config"]["classes"] == ["x", "y", "z"]
    assert described["card"] == (tiny_run / "README.md").read_text() or "hflip" in described["card"]
    assert "/predict" in json.loads(get(images, "/openapi.json")[1])["paths"]
    assert get(images, "/", Host="localhost") == (200, PAGE.read_text())
    assert get(images, "/model", Host="elsewhere.example")[0] == 400, "another site's name for us"


def test_the_page_needs_no_network():
    addresses = re.findall(r"https?://[^'\"\s)]+", PAGE.read_text())
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}


def test_features_with_a_key(features: tuple[int, sw.Model]):
    port, model = features
    row = tiny_features().items[0]
    request = post(json.dumps({"features": row.tolist()}).encode(), "application/json")
    assert send(port, request)[0] == 401
    keyed = request.replace(b"\r\n", f"\r\nX-API-Key: {KEY}\r\n".encode(), 1)
    code, answer = send(port, keyed)
    assert code == 200
    assert answer["predictions"][0]["probability"] == model.predict(row[None])[0].probability
    assert get(port, "/health")[0] == 200
    assert get(port, "/metrics")[0] == 401
    for content, why in ((b'{"features": [[1, 2]]}', "expected 5 numbers"), (b"[" * 10000, "JSON object")):
        request = post(content, f"application/json\r\nX-API-Key: {KEY}")
        code, answer = send(port, request)
        assert code in (400, 422)
        assert why in answer["detail"]


def test_a_stop_answers_what_was_accepted(tiny_run: Path):
    process, port = start(tiny_run, "--tta", "hflip+rotate")
    with ThreadPoolExecutor(16) as clients:
        answers = [clients.submit(send, port, form(png(seed))) for seed in range(16)]
        deadline = time.monotonic() + 20
        while "sourceward_hung_up" not in get(port, "/metrics")[1] and time.monotonic() < deadline:
            pass
        time.sleep(0.1)  # all connections are accepted; not all samples are predicted
        stop(process)
        assert {answer.result()[0] for answer in answers} == {200}
    with pytest.raises(OSError):
        send(port, form(png(0)))


def test_other_addresses_need_a_key(tiny_run: Path):
    with pytest.raises(InputError, match=r"API key for --host 0\.0\.0\.0"):
        serve(sw.load(tiny_run, "cpu"), host="0.0.0.0")


def test_a_port_in_use_is_an_input_error(images: int, tiny_run: Path):
    with pytest.raises(InputError, match=rf"127\.0\.0\.1:{images} cannot be used: Address already in use"):
        serve(sw.load(tiny_run, "cpu"), port=images)


def test_a_connection_without_a_whole_head_is_closed(tiny_run: Path):
    model = sw.load(tiny_run, "cpu")
    limits = Limits(body_seconds=0.3)
    server = uvicorn.Server(server_config(create_app(model, limits), "127.0.0.1", 0, limits))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for first, then in ((b"", b""), (b"", b"GET /health HT"), (whole, b"GET")):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(first)
            assert not first or connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(then)
            while connection.recv(65536):  # ends when the server closes
                pass
    server.should_exit = True
    thread.join(10)


def test_under_load_nothing_is_lost_and_nothing_wrong(tiny_run: Path, tmp_path: Path):
    for seed in range(4):
        (tmp_path / f"{seed}.png").write_bytes(png(seed))
    plan = LoadPlan(minutes=0.05, samples=4, bad=0.3, probe_seconds=0.5, hold_seconds=0.5)
    found = measure_load(tiny_run, [str(tmp_path)], plan)
    assert (found["lost"], found["wrong"]) == (0, 0)
    assert found["counts"]["answered"] + found["counts"].get("refused 429", 0) == found["counts"]["good"] > 0
    assert set(found["counts"]) <= {"answered", "good", "refused 429", *BAD}
    assert found["stopped_in_16_requests"] == {"counts": {"answered": 16}, "wrong": 0, "exit_code": 0}


def test_a_full_queue_refuses_and_a_failure_stays_alone():
    go = threading.Event()

    def predict(items: list) -> list:
        go.wait(10)
        return [1 / item for item in items]

    batcher = Batcher(predict, max_queue=4, max_batch=4)
    first = batcher.submit([1])
    time.sleep(0.1)  # the thread has taken it
    rest = batcher.submit([2, 0, 4, 5])
    with pytest.raises(Full):
        batcher.submit([6])
    go.set()
    batcher.stop()
    assert [first[0].result(), rest[0].result(), rest[2].result()] == [1, 0.5, 0.25]
    assert isinstance(rest[1].exception(), ZeroDivisionError)
    with pytest.raises(Full):
        batcher.submit([1])
