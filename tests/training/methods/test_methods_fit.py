"""A fit with another method writes a model folder that its adapter can use."""

import numpy as np
import pytest
import torch

from sourceward import InputError, create_adapter, load
from sourceward._util.storage import tensor_hash
from sourceward.adaptation import Unsuitable
from sourceward.nn.auxiliary import ROTATION
from sourceward.nn.domain_norm import MixedNorm
from sourceward.training.finetune import FineTuner
from tests.adaptation.test_adapters import make_image_network, make_images
from tests.tiny_runs import fit_tiny, four_domains, kill_at, tiny_images, tiny_texts, weights_of


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


@pytest.mark.parametrize("name", ["adversarial_noise", "single_sample", "dson", "masf", "l2a_ot"])
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, monkeypatch, name):
    settings = {"finetune.method": name, "finetune.freeze_batchnorm": name != "dson", "crossfit": 0.0}
    fit_tiny(tiny_images(), tmp_path / "whole", settings=settings)
    with monkeypatch.context() as patch:
        kill_at(patch, 8, FineTuner)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "killed", settings=settings)
    fit_tiny(tiny_images(), tmp_path / "killed", settings=settings)
    assert weights_of(tmp_path / "killed") == weights_of(tmp_path / "whole")


@pytest.mark.parametrize("name", ["tent", "batchnorm", "shot_im", "tsd", "tea", "memo", "tta"])
def test_norm_layers_of_each_source_work_under_every_adapter(name):
    network = make_image_network()
    network.backbone.use_domain_norm(3)
    for module in network.backbone.modules():
        if isinstance(module, MixedNorm):
            module.mix.data.fill_(1.0)  # batch norm alone: the branches agree
    network.eval().requires_grad_(False)
    options = {} if name == "tta" else {"batch_size": 4}
    adapted = create_adapter(name, **options)(network, make_images(8))
    plain = create_adapter(name, **options)(make_image_network(), make_images(8))
    assert np.isfinite(adapted.probabilities).all()
    if name in ("batchnorm", "tta"):  # nothing is trained: the same answers as without domains
        np.testing.assert_allclose(adapted.probabilities, plain.probabilities, atol=1e-4)


@pytest.mark.parametrize("name", ["masf", "entropy", "domain_embedding", "single_sample"])
def test_texts_are_trained_on_by_methods_that_need_no_images(tmp_path, name):
    data = tiny_texts()
    model = fit_tiny(data, tmp_path / "run", settings={"finetune.method": name, "crossfit": 0.0})
    assert len(model.predict(list(data.items[:3]))) == 3
    if name in ADAPTER_OF:
        tokens = model.backbone.prepare(list(data.items[:4]))
        adapted = create_adapter(ADAPTER_OF[name], batch_size=4)(model.network, tokens)
        np.testing.assert_allclose(adapted.probabilities.sum(1), 1, atol=1e-5)
