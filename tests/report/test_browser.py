"""Pages in a real browser: no column is cut at the width of a phone, no figure is empty, light and dark."""

import json
import shutil
import socket
import subprocess
import time
import urllib.request

import numpy as np
import pytest

from sourceward._util.tables import Table
from sourceward.report import figures
from sourceward.report.page import Card, Figure, Page, Section, render

DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(DRIVER is None, reason="chromedriver is not installed")

MEASURE = """
const wide = document.querySelectorAll('.scroll'), charts = document.querySelectorAll('svg');
return {
  page: document.documentElement.scrollWidth - window.innerWidth,
  cut: [...wide].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText),
  outside: [...charts].filter(e => e.getBoundingClientRect().right > window.innerWidth + 1).length,
  empty: [...charts].filter(e => e.getBoundingClientRect().height < 20).length,
  ink: getComputedStyle(document.body).color,
};
"""


def call(port, method, path, body=None):
    """One request of the WebDriver protocol."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, method=method)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())["value"]


@pytest.fixture(scope="module")
def driver():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            call(port, "GET", "/status")
            break
        except OSError:
            if time.monotonic() > deadline:
                process.kill()
                pytest.skip("chromedriver does not start")
            time.sleep(0.2)
    yield port
    process.terminate()
    process.wait(30)


def measured(port, file, width, scheme):
    """What the page measures in a window of this width."""
    window = {"width": width, "height": 800, "pixelRatio": 1, "mobile": width < 500}
    options = {
        "args": ["--headless=new", "--no-sandbox", "--hide-scrollbars"],
        "mobileEmulation": {"deviceMetrics": window},
    }
    wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}}
    session = f"/session/{call(port, 'POST', '/session', wanted)['sessionId']}"
    try:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        emulate = {"cmd": "Emulation.setEmulatedMedia", "params": media}
        call(port, "POST", f"{session}/goog/cdp/execute", emulate)
        call(port, "POST", f"{session}/url", {"url": file.as_uri()})
        return call(port, "POST", f"{session}/execute/sync", {"script": MEASURE, "args": []})
    finally:
        call(port, "DELETE", session)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with every part: tables of many and of few columns, charts, cards, a long name."""
    header = ["domain", "samples", "without, %", "with, %", "gain (95 % interval)", "balanced accuracy"]
    rows = [["a_domain_with_a_long_name", "12,345", "44.0", "49.1", "+5.1 (+0.6 to +10.3)", "49.1"]] * 3
    few = Table(["setting", "value"], [["finetune.backbone_learning_rate", "0.00005, 0.00005, 0.00005"]])
    panel = {"names": ["a_domain_with_a_long_name", "b"], "value": [40, 80], "measured": [False, True]}
    panel |= {"plot": "expected", "low": 45.0, "high": 95.0, "middle": 70.0, "xlabel": "accuracy, %"}
    counts = {"plot": "confusion", "counts": np.eye(7, dtype=int), "classes": ["elephant"] * 7, "title": ""}
    charts = [figures.to_svg(panel, (5.0, 1.5), "a"), figures.to_svg(counts, (3.4, 3.4), "b")]
    card = Card("", "elephant: predicted giraffe, then elephant", "target a", quote="x" * 200)
    section = Section("S", "Text.", [Table(header, rows), few], [Figure(charts, "caption")], [card])
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render(Page("title", "A headline of 49.1 %.", ["a note"], [section], ["footer"])))
    return file


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1000, "light")])
def test_nothing_is_cut(driver, page, width, scheme):
    found = measured(driver, page, width, scheme)
    ink = found.pop("ink")
    assert found == {"page": 0, "cut": [], "outside": 0, "empty": 0}
    bright = sum(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) > 3 * 128
    assert bright == (scheme == "dark"), ink
