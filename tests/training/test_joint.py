"""The recipe `joint`: Algorithm 1 end to end, its selection, and what it writes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sourceward as sw
from sourceward._util.errors import InputError, TrainingError
from sourceward._util.storage import tensor_hash
from sourceward.algorithm import Batch, objective
from sourceward.data.dataset import split_sources
from sourceward.nn import Network, ReplayBuffer
from sourceward.settings import AdaptSettings, LoopSettings, TrainSettings
from sourceward.training import joint
from sourceward.training import trainer as trainer_module
from sourceward.training.configuration import FitSettings
from sourceward.training.trainer import Trainer
from tests.tiny_runs import fit_tiny, kill_at, tiny_images, tiny_texts, weights_of


def test_nothing_is_chosen_and_nothing_is_estimated(joint_run):
    model = sw.load(joint_run, "cpu")
    assert (model.settings.num_steps, model.tta, model.info["expected_gain"]) == (2, "", None)
    assert model.settings.aggregation == AdaptSettings.aggregation
    assert model.info["cost"].keys() == {"joint"}
    assert "Not estimated" in (joint_run / "README.md").read_text()


def test_scores_are_those_of_its_predictions_on_source_validation(joint_run):
    model = sw.load(joint_run, "cpu")
    arranged, _, val = split_sources(tiny_images().without("c"))
    for name, rows in zip(model.sources, val, strict=True):
        scores = model.info["metrics"]["per_source"][name]
        for key, steps in (("unadapted", 0), ("adapted", None)):
            found = model.adapt(torch.from_numpy(arranged.items[rows]), num_steps=steps)
            right = found.probabilities.argmax(1) == arranged.labels[rows]
            assert scores[key] == pytest.approx(right.mean())
        assert scores["samples"] == rows.stop - rows.start


@pytest.mark.parametrize("names", ["hflip", "fourier", "adain"])
def test_transforms_can_be_named_afterwards(joint_run, names):
    model, images = sw.load(joint_run, "cpu"), torch.from_numpy(tiny_images().items[:4])
    plain, copies = model.predict_proba(images), model.with_tta(names).predict_proba(images)
    assert np.abs(copies - plain).max() > 0


def test_the_best_weights_are_used_and_the_last_are_beside_them(tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.1])  # of equals the later

    def validate(*_):
        value = next(scores)
        return {"adapted": value, "unadapted": value, "per_source": {}}

    monkeypatch.setattr(joint, "validation_scores", validate)
    settings = {"recipe": "joint", "evaluate_every": 3}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    assert model.info["metrics"]["iteration"] == 9
    assert model.info["metrics"]["last_iteration"] == 12
    last = sw.load(tmp_path / "run", "cpu", weights="last.safetensors")
    assert tensor_hash(last.network.state_dict()) != tensor_hash(model.network.state_dict())
    images = torch.from_numpy(tiny_images().items[:4])
    assert np.isfinite(last.predict_proba(images)).all()


def test_the_distilled_sampler_is_fitted_to_the_finished_network(tmp_path):
    settings = {"recipe": "joint", "sampler": "distilled", "train.distilled_steps": 3}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    images = torch.from_numpy(tiny_images().items[:4])
    again = sw.load(tmp_path / "run", "cpu")
    assert again.network.distilled is not None
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))


def test_a_kl_weight_that_presses_the_classes_out_of_z_stops_the_training(tmp_path):
    """With the released code's 0.1 in our units the prototype head of a ResNet-50 learned nothing for 2,000
    iterations: here the same weight for this width."""
    settings = {"recipe": "joint", "head": "prototype", "max_iter": 400, "kl_weight": 100.0, "batch_size": 8}
    settings |= {"train.feature_noise": 0.0, "evaluate_every": 400}
    with pytest.raises(
        TrainingError, match=r"learns almost nothing at iteration 300.*Lower `kl_weight`, now"
    ):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)


def test_a_training_at_chance_stops_and_says_so(tmp_path):
    settings = {
        "recipe": "joint",
        "head": "prototype",
        "max_iter": 400,
        "learning_rate": 1e-9,
        "batch_size": 8,
    }
    settings |= {"backbone_learning_rate": 0.0, "kl_weight": "paper", "evaluate_every": 400}
    with pytest.raises(TrainingError, match=r"has learned nothing at iteration 300.*Raise `learning_rate`"):
        fit_tiny(tiny_images(), tmp_path / "run", settings=settings)


def test_checkpoints_of_every_validation_are_kept_and_load(tmp_path):
    settings = {"recipe": "joint", "keep_checkpoints": True, "evaluate_every": 6}
    model = fit_tiny(tiny_images(), tmp_path / "run", settings=settings)
    kept = sorted(file.name for file in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["000006.safetensors", "000012.safetensors"]
    images = torch.from_numpy(tiny_images().items[:4])
    first = sw.load(tmp_path / "run", "cpu", weights=f"checkpoints/{kept[0]}")
    assert not np.array_equal(first.predict_proba(images), model.predict_proba(images))


JOINT = {"recipe": "joint", "head": "prototype", "update_per_source": True}


def one_source(network, replay, source):
    """A network and a replay buffer of one source with the weights of that source of a stack."""
    alone = Network(1, network.classes, network.dim, "prototype")
    state = {k: v[source : source + 1] for k, v in network.energy.state_dict().items()}
    alone.energy.load_state_dict(state)
    alone.latent.load_state_dict(network.latent.state_dict())
    alone.centers.copy_(network.centers[source : source + 1])
    own = ReplayBuffer(1, network.classes, network.dim, replay.per_class)
    own.rows.copy_(replay.rows[source : source + 1])
    own.pushed.copy_(replay.pushed[source : source + 1])
    return alone, own


def source_trainer(sources=3, per_source=True, head="prototype", device="cpu"):
    network = Network(sources, 3, 5, head)
    network.reset_parameters(torch.Generator().manual_seed(0))
    network.centers.normal_(generator=torch.Generator().manual_seed(1))
    network.to(device)
    settings = TrainSettings(num_steps=3, chains=None, feature_noise=0.0, supervised_steps=None)
    return Trainer(network, LoopSettings(max_iter=10), settings, 0.01, per_source=per_source)


def drawn(sources=3, rows=12):
    feature = torch.randn(sources, rows, 5, generator=torch.Generator().manual_seed(2))
    return Batch(feature, (torch.arange(rows) % 3).repeat(sources, 1))


def test_the_loss_of_one_source_is_that_of_a_network_of_this_source_alone():
    trainer, batch = source_trainer(), drawn()
    alone, own = one_source(trainer.network, trainer.replay, 1)
    trainer.generator.manual_seed(5)
    loss, _ = trainer._losses(batch, source=1)
    loss.backward()
    generator = torch.Generator().manual_seed(5)
    pick = torch.randint(24, (12,), generator=generator)
    pick = pick + 12 * (pick >= 12)
    assert set(pick.tolist()).isdisjoint(range(12, 24)), "negatives come from other sources"
    shifted = batch.feature.flatten(0, 1)[pick]
    part = Batch(batch.feature[1:2], batch.label[1:2], shifted, batch.label.flatten()[pick])
    expected = objective(alone, own, part, trainer.settings, trainer.coefficients, generator)
    expected.total.backward()
    assert torch.equal(loss, expected.total)
    for mine, other in zip(trainer.network.energy.parameters(), alone.energy.parameters()):
        assert torch.equal(mine.grad[1:2], other.grad)
        assert not mine.grad[0].any()
        assert not mine.grad[2].any()
    for name, value in trainer.replay.named_buffers():
        assert torch.equal(value[1:2], getattr(own, name)), name
        assert not value[0].any()
    assert torch.equal(trainer.network.energy.left0[1:2], alone.energy.left0)


@pytest.mark.parametrize("head", ["prototype", "concat", "linear"])
def test_every_source_has_an_update_of_its_own(head, monkeypatch):
    trainer, moved = source_trainer(head=head), []
    update = trainer.update

    def watched():
        before = trainer.network.energy.matrices[0].detach().clone()
        moved.append((trainer.network.energy.matrices[0].grad != 0).flatten(1).any(1).tolist())
        update()
        assert not torch.equal(before, trainer.network.energy.matrices[0])

    monkeypatch.setattr(trainer, "update", watched)
    loss = trainer.step(lambda generator: drawn())
    assert moved == [[True, False, False], [False, True, False], [False, False, True]]
    assert trainer.iteration == 1
    assert torch.isfinite(loss.total)


def test_with_one_source_both_kinds_of_update_are_the_same():
    found = []
    for per_source in (False, True):
        trainer = source_trainer(1, per_source)
        for _ in range(3):
            trainer.step(lambda generator: drawn(1))
        found.append(tensor_hash(trainer.network.state_dict()))
    assert found[0] == found[1]


@pytest.mark.cuda
@pytest.mark.parametrize("per_source", [False, True])
def test_graphs_train_as_launches_do(per_source):
    found, batch = [], Batch(*(value.cuda() for value in drawn(rows=16)[:2]))
    for captured in (False, True):
        trainer = source_trainer(per_source=per_source, device="cuda")
        trainer._capturable = captured
        losses = [trainer.step(lambda generator: batch).total.item() for _ in range(4)]
        assert len(trainer.graphs) == captured * (3 if per_source else 1)
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_killed_and_resumed_updates_per_source_have_the_same_bits(tmp_path, monkeypatch):
    fit_tiny(tiny_images(), tmp_path / "whole", settings=JOINT)
    with monkeypatch.context() as patch:
        kill_at(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tiny_images(), tmp_path / "run", settings=JOINT)
    fit_tiny(tiny_images(), tmp_path / "run", settings=JOINT)
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "whole")
    together = fit_tiny(tiny_images(), tmp_path / "together", settings=JOINT | {"update_per_source": False})
    assert tensor_hash(together.network.state_dict()) != weights_of(tmp_path / "whole")


def test_texts_are_updated_per_source(tmp_path):
    model = fit_tiny(tiny_texts(), tmp_path / "run", settings=JOINT)
    assert np.isfinite(model.predict_proba(tiny_texts().items[:3])).all()


def test_a_pooled_head_is_refused_where_sources_are_seen_one_at_a_time():
    with pytest.raises(InputError, match=r"`update_per_source` sees one source.*set `head=prototype`"):
        FitSettings(recipe="joint", update_per_source=True)


@pytest.mark.parametrize("shifts", ["corruptions", "noise"])
def test_negatives_of_a_single_source_are_corrupted_or_noisy_copies(shifts, tmp_path, monkeypatch):
    seen = []

    def watched(network, replay, batch, *rest):
        seen.append(batch)
        return objective(network, replay, batch, *rest)

    monkeypatch.setattr(trainer_module, "objective", watched)
    settings = {"recipe": "joint", "image_size": 32, "shifts": shifts, "train.input_noise": 0.1}
    model = fit_tiny(tiny_images(), tmp_path / "run", target=("b", "c"), settings=settings)
    assert model.sources == ("a",)
    assert seen
    for batch in seen:
        if shifts == "corruptions":  # one copy of each image, with its label
            assert len(batch.shifted) == 6
            assert torch.equal(batch.shifted_label, batch.label[0])
            assert (batch.shifted != batch.feature[0]).flatten(1).any(1).all()
        else:  # noise on the images, and on their features
            assert len(batch.shifted) == 12
            assert torch.equal(batch.shifted_label, batch.label[0].repeat(2))


@pytest.mark.parametrize("frozen", [False, True])
def test_features_of_random_weights_start_at_the_fitted_scale(frozen, tmp_path, monkeypatch):
    """Batch norm statistics of no data fit another scale. And timm's residual branches start at zero, and
    shortcuts read one corner, which is black here: the scale was fitted to features that are all the same,
    and a classifier of digits started with a loss of 55."""
    data, found = tiny_images(), []
    images = np.zeros((len(data), 3, 32, 32), dtype=np.uint8)
    images[:, :, 12:28, 12:28] = data.items

    def watched(network, replay, batch, *rest):
        feature = batch.feature.detach().flatten(0, 1)
        for points in (feature, feature - feature.mean(0)):
            found.append(points.norm(dim=-1).mean().item() / network.dim**0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "objective", watched)
    settings = {"recipe": "joint", "image_size": 32, "batch_size": 16, "freeze_batchnorm": frozen}
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(replace(data, items=images), tmp_path / "run", backbone="timm:resnet18", settings=settings)
    assert 0.3 < min(found) <= max(found) < 3


def test_batch_norm_statistics_behind_dropout_are_those_of_the_seed(tmp_path):
    found = []
    for name in ("one", "two"):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Dropout(), nn.BatchNorm2d(8), nn.Flatten())
        torch.rand(len(found))  # the state of the global generator is another one
        settings = {"recipe": "joint", "freeze_batchnorm": False}
        fit_tiny(tiny_images(), tmp_path / name, backbone=body, settings=settings)
        found.append(weights_of(tmp_path / name))
    assert found[0] == found[1]


def test_features_that_are_all_zero_are_refused(tmp_path):
    class Zero(nn.Conv2d):
        def forward(self, images):
            return 0 * super().forward(images).flatten(1)

    with pytest.raises(TrainingError, match=r"every sample the same features.*Start from pretrained"):
        fit_tiny(tiny_images(), tmp_path / "run", backbone=Zero(3, 2, 4, 4), settings={"recipe": "joint"})
