"""One thread, modest property tests, and the real data where it lies beside the checkout."""

import os
import re
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # on a GPU machine without the development packages, tests marked `cuda` still run
    settings = None

# Cores are shared: many threads on small tensors spend their time waiting for each other.
torch.set_num_threads(1)

# The same examples in every run: a red test is red again when it is run alone.
if settings is not None:
    settings.register_profile("sourceward", deadline=None, max_examples=20, derandomize=True)
    settings.load_profile("sourceward")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `cuda` where there is no CUDA device."""
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


OPTIONAL = (
    *("hypothesis", "torchmetrics", "skada", "pydantic", "fastapi", "starlette", "uvicorn", "httpx"),
    *("onnx", "ray", "gradio", "pyarrow", "pandas", "playwright"),
)
"""Packages of extras, which a GPU machine may lack."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a module that imports an optional package which is not installed."""
    report = yield
    missing = re.search(r"No module named '(\w+)", str(report.longrepr)) if report.failed else None
    if missing and missing[1].startswith(OPTIONAL):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"{missing[1]} is not installed")
    return report


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data that is never part of the project."""
    folder = Path(__file__).parents[1].parent / "shared"
    if not folder.exists():
        pytest.skip("real data is not beside this checkout (../shared)")
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images and features of a test stay in its own folder."""
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of images, trained once for all tests that only read it."""
    from tests.tiny_runs import fit_tiny, tiny_images

    out = tmp_path_factory.mktemp("runs") / "images"
    fit_tiny(tiny_images(), out)
    return out


@pytest.fixture(scope="session")
def joint_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the recipe `joint`."""
    from tests.tiny_runs import fit_tiny, tiny_images

    out = tmp_path_factory.mktemp("runs") / "joint"
    fit_tiny(tiny_images(), out, settings={"recipe": "joint"})
    return out


RAY_LIMITS = {
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_health_check_timeout_ms": "60000",
}
"""Time for Ray to start: its own limits are 10 to 60 seconds, which processes that only import Ray exceed
when other tests hold the cores; Ray then ends the node."""


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray cluster of two nodes with a core each, for all tests of a session."""
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install sourceward[ray])")
    from ray.cluster_utils import Cluster

    same = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.mktemp("ray-cache"))
        for name, value in {**RAY_LIMITS, **same, "SOURCEWARD_CACHE": cache}.items():
            patch.setenv(name, value)  # the nodes inherit it, and their workers from them
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            cluster.add_node(**node)
            ray.init(cluster.address, log_to_driver=False)
            assert sum(node["Alive"] for node in ray.nodes()) == 2
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()
