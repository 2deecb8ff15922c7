"""`Predictor` in Ray Data, and shards on a Ray cluster, each with a worker that is killed in the middle."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import sourceward as sw
from sourceward.deploy import batch
from tests.deploy.test_batch import feature_files, same_files
from tests.tiny_runs import tiny_features

pytestmark = pytest.mark.xdist_group("ray")


def die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(sw.Predictor):
    """Kills its worker once, in the middle of the data."""

    def __init__(self, run: Path, mark: Path) -> None:
        super().__init__(run, keep=["id"], device="cpu")
        self.mark = mark

    def __call__(self, columns):
        if 30 in columns["id"]:
            die_once(self.mark)
        return super().__call__(columns)


def test_ray_data_with_a_worker_killed_in_the_middle(ray_cluster, feature_run, tmp_path):
    import ray

    X = tiny_features().items
    rows = ray.data.from_items([{"features": row, "id": i} for i, row in enumerate(X)], override_num_blocks=6)
    mark = tmp_path / "killed"
    found = rows.map_batches(Mortal(feature_run, mark), batch_size=10).to_pandas().sort_values("id")
    assert mark.exists(), "no worker was killed"
    expected = sw.Predictor(feature_run, device="cpu")({"features": X})
    assert found["id"].tolist() == list(range(len(X)))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name].to_numpy(dtype=values.dtype), values)


def predict_or_die(job):
    if job.shard.out == "day=1/part-1.parquet":
        die_once(Path(job.folder) / "killed")
    return batch_predict_shard(job)


batch_predict_shard = batch.predict_shard


def test_shards_on_a_cluster_with_a_worker_killed(ray_cluster, feature_run, tmp_path, monkeypatch):
    data = feature_files(tmp_path / "in", 5)
    here = batch.predict_shards(feature_run, [data], tmp_path / "here", device="cpu")
    monkeypatch.setattr(batch, "predict_shard", predict_or_die)
    there = batch.predict_shards(feature_run, [data], tmp_path / "ray", device="cpu", engine="ray")
    assert (tmp_path / "ray" / "killed").exists(), "no worker was killed"
    assert there == here
    assert same_files(tmp_path / "here", tmp_path / "ray")
