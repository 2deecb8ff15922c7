"""What design and README promise, on a CUDA device. Run all tests that need one with

    pytest -m cuda tests/test_cuda.py tests/model/test_batch.py tests/model/test_image_encoder.py \
        tests/_util/test_graphs.py tests/samplers/cuda tests/training/methods tests/training/test_joint.py
"""

import copy

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward.adaptation import EnergyAdaptation
from sourceward.deploy.export import ExportedFile
from sourceward.samplers import SAMPLERS
from sourceward.training.trainer import Trainer
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import tiny_images

pytestmark = pytest.mark.cuda
DEVICE = "cuda"

X, Y, SOURCE = make_domains()
TARGET = make_domains(rows=60, sources=1, seed=1)[0] + 2.0


def fitted(**params) -> sw.EnergyAdapter:
    return sw.EnergyAdapter(**{**QUICK, "device": DEVICE, **params}).fit(X, Y, sample_domain=SOURCE)


def weights(est: sw.EnergyAdapter) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in est.network_.state_dict().items()}


def test_zero_steps_equal_no_adaptation():
    est = fitted(num_steps=0, noise_std=0.5)
    plain = sw.create_adapter("none")(est.network_, est.rescale(TARGET))
    assert np.array_equal(est.adapt(TARGET).probabilities, plain.probabilities)


def test_autocast_of_the_caller_changes_no_bit():
    first, second = fitted(), fitted()
    with torch.autocast(DEVICE, torch.bfloat16):
        found = first.predict_proba(TARGET)
    expected = second.predict_proba(TARGET)
    assert np.array_equal(found, expected)
    assert np.array_equal(first.predict_proba(TARGET), expected)  # by the graph captured above


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_predicting_changes_no_parameter_and_raises_no_energy(sampler):
    est = fitted(sampler=sampler)
    before = weights(est)
    result = est.adapt(TARGET)
    assert np.isfinite(result.probabilities).all()
    if sampler not in ("langevin_unchecked", "mala"):  # these accept a rise
        assert (result.energy_after <= result.energy_before + 1e-6).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(est).items())


def test_the_device_changes_rounding_alone():
    est = fitted()
    feature, adapter = est.rescale(TARGET), EnergyAdaptation(est.settings_)
    ours = adapter(est.network_, feature)
    theirs = adapter(copy.deepcopy(est.network_).to("cpu"), feature.cpu())
    for name in ("probabilities", "per_source", "energy_before", "energy_after"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=0.01)


class Killed(Exception):
    pass


@pytest.mark.parametrize("when", [1, 50, 119])
def test_stopped_anywhere_it_ends_with_the_same_bits(tmp_path, monkeypatch, when):
    params = {"max_iter": 120, "checkpoint": tmp_path / "checkpoint"}
    uninterrupted, step = weights(fitted(max_iter=120)), Trainer.step

    def stop(self, feed):
        if self.iteration == when:
            raise Killed
        return step(self, feed)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", stop)
        with pytest.raises(Killed):
            fitted(**params)
    resumed = weights(fitted(**params))
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in uninterrupted.items())


def test_a_model_on_the_device_is_exported_and_stays_there(tiny_run, tmp_path):
    model, images = sw.load(tiny_run, DEVICE).with_tta("hflip"), torch.from_numpy(tiny_images().items[:8])
    model.export(tmp_path / "model.pt2", samples=images)  # compares the file with the model on a CPU
    assert model.device.type == DEVICE
    found = ExportedFile(tmp_path / "model.pt2")((images,))[0]
    np.testing.assert_allclose(found, model.predict_proba(images), rtol=0, atol=0.02)  # bfloat16, noise
