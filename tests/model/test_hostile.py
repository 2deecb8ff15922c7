"""A model folder from anybody: one `InputError`, or a model; no other file, no network, no code."""

import json
import os
import shutil
import socket
import time
import tracemalloc

import numpy as np
import pytest
import torch

import sourceward as sw
from sourceward import InputError
from sourceward._util.storage import load_tensors, save_tensors
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import fit_tiny, tiny_features, tiny_images

IMAGES = torch.from_numpy(tiny_images().items[:4])


@pytest.fixture
def copied(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "copy")


@pytest.fixture
def connections(monkeypatch):
    """Every attempt to reach the network, all of which fail."""
    tried = []

    def refuse(self, address, *rest):
        tried.append(address)
        raise OSError("no network here")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: refuse(None, host))
    return tried


def edit(folder, change):
    """Change config.json as somebody would who knows of its checksum."""
    config = json.loads((folder / "config.json").read_text())
    del config["sha256"]
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_an_edit_is_noticed_and_can_be_allowed(copied):
    before = sw.load(copied, "cpu").predict_proba(IMAGES)
    text = (copied / "config.json").read_text()
    (copied / "config.json").write_text(text.replace('"num_steps": 2', '"num_steps": 3'))
    with pytest.raises(InputError, match=r"its checksum does not match\. Restore a copy; .* remove its key"):
        sw.load(copied)
    (copied / "config.json").write_text(text)
    edit(copied, lambda config: None)
    assert np.array_equal(sw.load(copied, "cpu").predict_proba(IMAGES), before)


def test_weights_of_another_run_are_noticed(copied, tmp_path):
    model = sw.load(copied, "cpu")
    with torch.no_grad():
        model.network.centers.mul_(2)
    model.save(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", copied)
    with pytest.raises(InputError, match="is not the file with which"):
        sw.load(copied)


@pytest.mark.parametrize("checksum", [True, False])
def test_flipped_bits_in_the_config(copied, checksum):
    if not checksum:
        edit(copied, lambda config: None)
    file = copied / "config.json"
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        file.write_bytes(data)
        try:
            model = sw.load(copied, "cpu")
            assert np.isfinite(model.predict_proba(IMAGES)).all()
        except InputError:
            continue
        assert not checksum or json.loads(bytes(data)) == json.loads(whole)


BACKBONES = {
    "from the Hub": {"family": "timm", "name": "hf-hub:timm/resnet18.a1_in1k"},
    "from a folder": {"family": "timm", "name": "local-dir:/tmp"},
    "a checkpoint": {
        "family": "timm",
        "name": "resnet18",
        "architecture": {"checkpoint_path": "/etc/hostname"},
    },
    "too large": {"family": "timm", "name": "vit_7b_patch16_dinov3"},
    "remote code": {
        "family": "hf",
        "name": "x/y",
        "architecture": {"model_type": "vit", "auto_map": {"A": "b"}},
    },
    "a kernel": {
        "family": "hf",
        "name": "x",
        "architecture": {"model_type": "vit", "attn_implementation": "a/b"},
    },
    "pretrained": {
        "family": "hf",
        "name": "x",
        "architecture": {"model_type": "detr", "use_pretrained_backbone": True, "backbone": "resnet50"},
    },
    "wide": {"family": "hf", "name": "x", "architecture": {"model_type": "vit", "hidden_size": 24000}},
    "unknown": {"family": "hf", "name": "x", "architecture": {"model_type": "nothing"}},
    "no family": {"family": "os", "name": "system"},
    "own": {"family": "module", "name": "os.system"},
}


@pytest.mark.parametrize("backbone", BACKBONES.values(), ids=BACKBONES)
def test_backbones_from_elsewhere(copied, connections, backbone):
    if backbone["family"] == "hf":
        pytest.importorskip("transformers")
    edit(copied, lambda config: config["backbone"].update({"architecture": {}, **backbone}))
    started = time.monotonic()
    with pytest.raises(InputError):
        sw.load(copied)
    assert not connections
    assert time.monotonic() - started < 30


SETTINGS = {
    "dim": lambda config: config["adapter"].update(dim=10**6),
    "huge dim": lambda config: config["adapter"].update(dim=10**20),
    "width": lambda config: config["adapter"].update(n_features_in=10**9),
    "classes": lambda config: config["adapter"].update(classes=[str(n) for n in range(10**5)]),
    "no type": lambda config: config["adapter"].update(classes_dtype="nothing"),
    "steps": lambda config: config["adapter"].update(num_steps=10**9),
    "step size": lambda config: config["adapter"]["params"].update(step_size=1e308),
    "sampler": lambda config: config["adapter"]["params"].update(sampler=["langevin"]),
    "parameter": lambda config: config["adapter"]["params"].update(nothing=1),
    "transforms": lambda config: config.update(tta="hflip+nothing"),
    "no adapter": lambda config: config.pop("adapter"),
    "size": lambda config: config["backbone"]["preprocessing"].update(size=[10**6, 10**6]),
    "no size": lambda config: config["backbone"]["preprocessing"].update(size="large"),
    "mean": lambda config: config["backbone"]["preprocessing"].update(mean=[None] * 3),
    "std": lambda config: config["backbone"]["preprocessing"].update(std=[0, 0, 0]),
    "auxiliary": lambda config: config["backbone"].update(auxiliary={"rotation": 10**12}),
    "sources": lambda config: config["backbone"].update(auxiliary={"single_sample": [10**9, 10**3]}),
    "no network": lambda config: config["backbone"].update(auxiliary={"nothing": [1]}),
    "norm": lambda config: config["backbone"].update(domain_norm=10**9),
}


@pytest.mark.parametrize("change", SETTINGS.values(), ids=SETTINGS)
def test_settings_that_cannot_be(copied, change):
    edit(copied, change)
    with pytest.raises(InputError):
        sw.load(copied, "cpu")


@pytest.mark.parametrize("kind", ["<U50000000", "S50000000", "V50000000", "50000000u4"])
def test_a_type_of_classes_that_takes_memory(copied, tmp_path, kind):
    """A few bytes of config.json, or of the file of an estimator, that would take gigabytes."""
    edit(copied, lambda config: config["adapter"].update(classes_dtype=kind))
    features, label, source = make_domains(rows=15)
    sw.EnergyAdapter(**{**QUICK, "max_iter": 3}).fit(features, label, sample_domain=source).save(
        tmp_path / "e"
    )
    tensors, meta = load_tensors(tmp_path / "e")
    save_tensors(tmp_path / "e", tensors, {**meta, "classes_dtype": kind})
    tracemalloc.start()
    for read in (lambda: sw.load(copied, "cpu"), lambda: sw.EnergyAdapter.load(tmp_path / "e")):
        with pytest.raises(InputError, match="its classes cannot be of type"):
            read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e7


def test_a_checkpoint_in_a_folder_is_not_used(tmp_path):
    fit_tiny(tiny_features(), tmp_path / "run")
    other = str(tmp_path / "elsewhere")
    edit(tmp_path / "run", lambda config: config["adapter"]["params"].update(checkpoint=other))
    assert sw.load(tmp_path / "run").adapter.checkpoint is None


def test_a_config_that_is_a_pipe_or_too_deep(copied):
    (copied / "config.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        sw.load(copied)
    (copied / "config.json").unlink()
    os.mkfifo(copied / "config.json")
    with pytest.raises(InputError, match="Expected a model folder"):
        sw.load(copied)
    with pytest.raises(InputError, match="Expected a model folder"):
        sw.load("x" * 5000)
