"""Heads of a frozen image backbone see every image half way to the style of another source, too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward._util.errors import InputError
from sourceward.data.features import extract_styled
from sourceward.data.image_ops import mix_amplitude_toward as toward_amplitude
from sourceward.data.split import split_sources as arrange
from sourceward.data.transforms import SHARE
from sourceward.fitting import fit
from sourceward.nn.backbones import create_backbone
from sourceward.training.styles import beside, directions
from sourceward.validation.leave_one_domain_out import CAP, Trial, try_views
from tests.tiny_runs import fit_tiny, tiny_features, tiny_images

SMALL = {"max_iter": 3, "num_steps": 1}


def test_copies_stand_after_the_rows_of_their_source():
    dataset, train, val = arrange(tiny_features())
    copies = dataset.items[: train[-1].stop] + 1000
    both, trained, selected = beside(dataset, train, val, copies)
    for old, new in zip(train, trained):
        half = (new.stop - new.start) // 2
        first, second = (both.select(np.arange(a, a + half)) for a in (new.start, new.start + half))
        plain = dataset.select(np.arange(old.start, old.stop))
        np.testing.assert_array_equal(first.items, plain.items)
        np.testing.assert_array_equal(second.items, plain.items + 1000)
        for part in (first, second):
            np.testing.assert_array_equal(part.labels, plain.labels)
            np.testing.assert_array_equal(part.domains, plain.domains)
    for old, new in zip(val, selected):
        np.testing.assert_array_equal(both.items[new], dataset.items[old])
        np.testing.assert_array_equal(both.labels[new], dataset.labels[old])


def test_features_of_copies():
    data, backbone = tiny_images(), create_backbone("tiny:conv", weights=None, image_size=16).eval()
    styles = torch.rand(3, 3, 16, 9) * 50
    toward = np.arange(len(data)) % 3
    found = extract_styled(data, backbone, styles, toward, torch.device("cpu"), show=False)
    images = torch.from_numpy(data.items[:4]).float() / 255
    there = toward_amplitude(images, styles[toward[:4]], SHARE)
    with torch.no_grad():
        expected = backbone(backbone.prepare((there * 255).round().to(torch.uint8)))
    np.testing.assert_allclose(found[:4], expected.numpy(), atol=1e-5)


def test_only_a_frozen_image_backbone_sees_them(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "sourceward.training.task.beside", lambda *parts: seen.append(len(parts[3])) or beside(*parts)
    )
    options = {"device": "cpu", "progress": False, "target": "c"}
    fit(
        tiny_images(),
        out=tmp_path / "a",
        backbone="tiny:conv",
        weights=None,
        freeze=True,
        settings=SMALL,
        **options,
    )
    assert seen == [arrange(tiny_images().of_domains(["a", "b"]))[1][-1].stop]
    off = SMALL | {"amplitudes": False}
    fit(
        tiny_images(),
        out=tmp_path / "b",
        backbone="tiny:conv",
        weights=None,
        freeze=True,
        settings=off,
        **options,
    )
    fit(tiny_features(), out=tmp_path / "c", settings=SMALL, **options)
    assert len(seen) == 1
    with pytest.raises(InputError, match="pass --freeze"):
        fit(tiny_images(), out=tmp_path / "d", backbone="tiny:conv", weights=None, settings=off, **options)


def test_pretend_targets_are_samples_as_they_came(tmp_path, monkeypatch):
    asked = []

    def listen(self, parts, *rest):
        asked.append([len(x) for x, _ in parts])
        return replace(self._test_time(0)), None

    monkeypatch.setattr("sourceward.estimator.EnergyAdapter.self_tune", listen)
    data, settings = tiny_images(), {"max_iter": 3}
    fit(data, out=tmp_path / "run", backbone="tiny:conv", weights=None, freeze=True, settings=settings,
        device="cpu", progress=False, target="c")  # fmt: skip
    train = arrange(data.of_domains(["a", "b"]))[1]
    assert asked == [[rows.stop - rows.start for rows in train]]


def test_pretend_targets_say_whether_to_ask_about_styles(tmp_path, monkeypatch):
    """Each source is asked about in the style of another by a network that was trained without it."""
    worth = {"a": 0.03, "b": 0.01, "c": 0.02}

    def tried(name, network, voices, label):
        assert [len(pictures) for pictures in voices] == [1, 2]  # each of the two sources that are left
        assert all(len(one) == len(label) for pictures in voices for one in pictures)
        assert not torch.equal(voices[1][0], voices[0][0])
        right = np.zeros((2, 1000))
        right[int(worth[name] > 0), : round(1000 * abs(worth[name]))] = 1
        return Trial(name, right)

    monkeypatch.setattr("sourceward.training.joint.try_views", tried)
    model = fit_tiny(tiny_images(), tmp_path / "on", target=(), freeze=True, settings={"num_steps": "auto"})
    told = model.info["tta_gain"]
    assert told["gain"] == pytest.approx((CAP + 0.01 + 0.02) / 3)
    assert told["per_source"] == pytest.approx(worth)
    assert model.views == sw.load(tmp_path / "on", "cpu").views == "style"
    assert "+1.7 points expected" in (tmp_path / "on" / "README.md").read_text()
    worth = {"a": 0.03, "b": -0.01, "c": 0.0}
    model = fit_tiny(tiny_images(), tmp_path / "off", target=(), freeze=True, settings={"num_steps": "auto"})
    assert model.views == ""
    assert "not worth it" in (tmp_path / "off" / "README.md").read_text()


def test_a_pretend_target_is_asked_with_and_without_its_other_pictures(tmp_path):
    model = fit_tiny(tiny_features(), tmp_path / "run", settings={"whiten": False})
    data = tiny_features().of_domains("c")
    label, feature = torch.from_numpy(data.labels).long(), model.features(data.items)
    other, third = feature.flip(0), feature.roll(1, 0)
    trial = try_views("c", model.network, [[feature], [other, third]], label)
    plain = model.adapt(data.items, num_steps=0).probabilities
    asked = plain + (plain[::-1] + np.roll(plain, 1, 0)) / 2
    for right, answer in zip(trial.right, (plain, asked)):
        np.testing.assert_array_equal(right, answer.argmax(1) == data.labels)


def test_who_plays_the_target_is_no_style_to_learn(tmp_path, monkeypatch):
    """Copies toward the source that is held out teach the pretend model nothing, the others do."""
    taught = []

    def fit_network(self, parts, *rest, **options):
        taught.append([len(x) for x, _ in parts])
        return real(self, parts, *rest, **options)

    real = sw.EnergyAdapter._fit_network
    monkeypatch.setattr("sourceward.EnergyAdapter._fit_network", fit_network)
    fit_tiny(tiny_images(), tmp_path / "run", target=(), freeze=True, settings={"num_steps": "auto"})
    train = arrange(tiny_images())[1]
    sizes = [rows.stop - rows.start for rows in train]
    expected = []
    for held in range(3):
        left = [source for source in range(3) if source != held]
        kept = [(directions(source, train[source], 3) != held).sum() for source in left]
        expected.append([sizes[source] + more for source, more in zip(left, kept)])
    assert taught == expected


def test_last_weights_know_the_styles_too(tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.9, 0.1])

    def validate(*_):
        value = next(scores)
        return {"adapted": value, "unadapted": value, "per_source": {}}

    monkeypatch.setattr("sourceward.training.joint.validate", validate)
    fit_tiny(tiny_images(), tmp_path / "run", freeze=True, settings={"evaluate_every": 3})
    best, last = (
        sw.load(tmp_path / "run", "cpu", weights=f"{name}.safetensors") for name in ("model", "last")
    )
    assert torch.equal(best.network.amplitudes, last.network.amplitudes)
