"""Odd uploads to the application: an answer below 500 without a stack trace, and a good one afterwards."""

import io

import pytest
from PIL import EpsImagePlugin, Image

import sourceward as sw
from sourceward.deploy.server import create_app
from sourceward.deploy.server_settings import Limits

BOUNDARY = "x" * 20


def png() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 99, 200)).save(stream, "PNG")
    return stream.getvalue()


def part(data: bytes, head: str = 'form-data; name="files"; filename="a.png"') -> bytes:
    return b"\r\n".join(
        [b"--" + BOUNDARY.encode(), b"Content-Disposition: " + head.encode("latin-1"), b"", data, b""]
    )


END = f"--{BOUNDARY}--\r\n".encode()
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
FORMS = {
    "no end": part(png()),
    "nothing": b"",
    "only the end": END,
    "no name": part(png(), "form-data") + END,
    "no file name": part(png(), 'form-data; name="files"') + END,
    "a path as name": part(png(), 'form-data; name="files"; filename="../../etc/passwd"') + END,
    "a null character": part(png(), 'form-data; name="files"; filename="a\0b.png"') + END,
    "a name that is no UTF-8": part(png(), 'form-data; name="files"; filename="\xff\xfe.png"') + END,
    "a long name": part(png(), f'form-data; name="files"; filename="{"y" * 60_000}"') + END,
    "many parts": part(b"") * 200 + END,
    "many fields": part(b"1", 'form-data; name="a"') * 100 + END,
    "two boundaries": part(part(png()) + END) + END,
    "text after the end": part(png()) + END + b"x" * 1000,
    "an empty file": part(b"") + END,
    "PostScript": part(EPS) + END,
    "half an image": part(png()[:50]) + END,
}


@pytest.fixture(scope="module")
def client(tiny_run):
    testclient = pytest.importorskip("starlette.testclient")
    app = create_app(sw.load(tiny_run, "cpu"), Limits(samples=8, body_bytes=2**20))
    with testclient.TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("boundary", [BOUNDARY, "other", '"', ""])
@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
def test_odd_forms(client, monkeypatch, body, boundary):
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **more: started.append(given))
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    answer = client.post("/predict", content=body, headers=kind)
    assert answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text
    assert not started
    good = client.post(
        "/predict",
        content=part(png()) + END,
        headers={"content-type": f"multipart/form-data; boundary={BOUNDARY}"},
    )
    assert good.status_code == 200
