"""A fit with another method writes a model folder that its adapter can use."""

import numpy as np
import pytest
import torch

from sourceward import InputError, create_adapter, load
from sourceward._util.storage import tensor_hash
from sourceward.adaptation import Unsuitable
from sourceward.nn.auxiliary import ROTATION
from tests.adaptation.test_adapters import make_image_network
from tests.tiny_runs import fit_tiny, four_domains, tiny_images, tiny_texts


def test_the_rotation_head_is_in_the_model_folder(tmp_path):
    data = tiny_images()
    model = fit_tiny(data, tmp_path / "run", settings={"finetune.method": "rotation"})
    again = load(tmp_path / "run", "cpu")
    head = again.backbone.auxiliary[ROTATION]
    assert torch.equal(head.weight, model.backbone.auxiliary[ROTATION].weight)
    assert head.weight.abs().sum() > 0  # trained
    images = again.backbone.preprocessing.normalize(torch.from_numpy(data.items[:3]))
    none = create_adapter("none")(again.network, again.network.features(images))
    adapted = create_adapter("ttt", num_copies=4, learning_rate=0.1)(again.network, images)
    assert np.abs(adapted.probabilities - none.probabilities).max() > 0
    assert set(adapted.status) == {"adapted"}


ADAPTER_OF = {"single_sample": "generated_classifier", "domain_embedding": "domain_adaptive"}


@pytest.mark.parametrize("name", [*ADAPTER_OF, "dson"])
def test_a_model_folder_keeps_what_the_method_trained(tmp_path, name):
    data = four_domains()
    settings = {"finetune.method": name, "finetune.freeze_batchnorm": name != "dson"}
    model = fit_tiny(data, tmp_path / "run", target="d", settings=settings)
    again = load(tmp_path / "run", "cpu")
    assert tensor_hash(again.backbone.state_dict()) == tensor_hash(model.backbone.state_dict())
    rows = torch.from_numpy(data.items[:3])
    images = again.backbone.preprocessing.normalize(rows)
    assert torch.equal(again.backbone(images), model.backbone(images))
    assert len(again.predict([row.numpy().transpose(1, 2, 0) for row in rows])) == 3
    if name in ADAPTER_OF:
        adapter = create_adapter(ADAPTER_OF[name], batch_size=3)
        assert np.array_equal(
            adapter(again.network, images).probabilities, adapter(model.network, images).probabilities
        )


@pytest.mark.parametrize("name", ADAPTER_OF.values())
def test_an_adapter_names_the_method_that_trains_it(name):
    with pytest.raises(Unsuitable, match=r"--set finetune.method=(single_sample|domain_embedding)"):
        create_adapter(name)(make_network_without_auxiliary(), torch.zeros(1, 3, 16, 16))


def make_network_without_auxiliary():
    network = make_image_network()
    network.backbone.auxiliary.clear()
    return network


@pytest.mark.parametrize(
    ("name", "data", "target", "reason"),
    [
        ("cutmix", tiny_texts, "c", "'cutmix' needs images, but the data holds texts"),
        ("l2a_ot", tiny_texts, "c", "'l2a_ot' needs images"),
        ("masf", tiny_images, ("b", "c"), "'masf' needs 2 or more source domains, but got 1"),
        ("single_sample", tiny_images, ("b", "c"), "needs 2 or more source domains, but got 1"),
        ("dson", tiny_images, "c", "needs `finetune.freeze_batchnorm=false`"),
    ],
)
def test_data_that_a_method_cannot_use_is_refused_before_any_work(tmp_path, name, data, target, reason):
    with pytest.raises(InputError, match=reason):
        fit_tiny(data(), tmp_path / "run", target=target, settings={"finetune.method": name})
    assert not (tmp_path / "run").exists()
