"""Experiments of the paper on jointly trained models, and options of the data's reader."""

import pytest

from sourceward.bench.experiments import Context
from sourceward.bench.experiments.reproduce import reproduce
from sourceward.bench.protocol.training import Training
from tests.bench.experiments.test_experiments import draw, joint_context
from tests.tiny_runs import NAMED, TINY, image_folder, text_table

SHARED = ("ablation", "steps", "per-source", "aggregation", "latent", "latent-map", "maps", "trajectories")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Images, and models that are trained once for all experiments."""
    folder = tmp_path_factory.mktemp("joint")
    return str(image_folder(folder / "images")), folder / "models"


@pytest.mark.parametrize("name", SHARED)
def test_experiments_take_jointly_trained_models(name, trained, tmp_path):
    images, models = trained
    results = reproduce(name, joint_context(images, tmp_path / name, models=models), draw=draw)
    assert results["tables"][0]["rows"]
    for figure in results["figures"]:
        assert (tmp_path / name / figure["file"]).exists()


def test_options_reach_the_reader(tmp_path):
    options = tuple(tuple(text.split("=")) for text in NAMED)
    settings = {k: v for k, v in TINY.items() if k != "learning_rate"} | {"recipe": "joint"}
    training = Training(settings, "cpu", True, backbone="tiny:text", weights=None)
    table = str(text_table(tmp_path / "texts.csv"))
    given = Context((table,), tmp_path / "out", (0,), ("c",), training, 2, True, options=options)
    assert reproduce("per-source", given)["numbers"]["sources"].keys() == {"texts/c<-a", "texts/c<-b"}
