"""The web page in a real browser: headless Chromium, driven by the WebDriver protocol."""

import base64
import io
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.deploy.test_server import png, start, stop
from tests.tiny_runs import fit_tiny, tiny_texts

if not shutil.which("chromedriver"):
    pytest.skip(
        "Chromium is not installed (apt-get install chromium chromium-driver)", allow_module_level=True
    )
SHOWN = ("Probability", "Trust", "Agreement", "Most probable classes", "What each source predicts")


class Browser:
    """The few commands of WebDriver that the tests need."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self.address += f"/{self.send('', {'capabilities': wanted})['sessionId']}"

    def send(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method)
        return json.load(urllib.request.urlopen(request, timeout=120))["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.send("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def script(self, code: str) -> Any:
        return self.send("/execute/sync", {"script": f"return {code}", "args": []})

    def wait(self, code: str) -> None:
        end = time.monotonic() + 90
        while not self.script(code):
            assert time.monotonic() < end, self.script("document.body.innerText")
            time.sleep(0.1)

    def element(self, css: str, what: str, body: Any) -> None:
        (found,) = self.send("/element", {"using": "css selector", "value": css}).values()
        self.send(f"/element/{found}/{what}", body)

    def show(self, port: int, width: int, scheme: str) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=media)
        self.send("/url", {"url": f"http://127.0.0.1:{port}/"})
        self.wait("document.querySelector('#file, #text')")

    def corner(self) -> int:
        """The brightness of the page's lower left corner on a screenshot."""
        shot = base64.b64decode(self.send("/screenshot", method="GET"))
        return int(np.asarray(Image.open(io.BytesIO(shot)).convert("L"))[-2, 1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.PIPE, text=True)
    assert any("started successfully" in line for line in process.stdout)
    found = Browser(port)
    yield found
    found.send("", method="DELETE")
    process.terminate()
    process.wait(30)


def test_images_at_both_widths_in_both_schemes(browser: Browser, tiny_run: Path, tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "broken.png").write_bytes(b"no image")
    process, port = start(tiny_run, "--tta", "hflip+crop")
    for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        browser.show(port, width, scheme)
        browser.element("#file", "value", {"text": f"{tmp_path / 'a.png'}\n{tmp_path / 'broken.png'}"})
        browser.wait("document.querySelectorAll('.item .l')[1]?.textContent === 'unreadable'")
        text = browser.script("document.body.innerText")
        shown = (
            *SHOWN,
            "Transformed copies",
            "horizontal flip",
            "centre crop",
            "Langevin chain",
            "Without adaptation",
        )
        assert all(part in text for part in shown), text
        loaded = "[...document.querySelectorAll('.copy img')].map(image => image.naturalWidth > 0)"
        assert browser.script(loaded) == [True] * 3
        assert (
            browser.script("document.querySelectorAll('svg polyline').length") == 2
        )  # a chain for each source
        assert "→" in browser.script("document.querySelector('table').innerText"), "energy before and after"
        assert browser.script("document.documentElement.scrollWidth") <= width
        assert (browser.corner() > 128) == (scheme == "light")
    stop(process)


def test_texts(browser: Browser, tmp_path: Path):
    fit_tiny(tiny_texts(), tmp_path / "run", freeze=True)
    process, port = start(tmp_path / "run")
    browser.show(port, 1280, "light")
    browser.element("#text", "value", {"text": "a lovely and great text"})
    browser.element("#go", "click", {})
    browser.wait("document.querySelector('.label')")
    text = browser.script("document.body.innerText")
    assert all(part in text for part in (*SHOWN, "Langevin chain")), text
    assert "copies" not in text
    stop(process)
