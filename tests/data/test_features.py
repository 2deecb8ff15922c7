"""Features on disk: computed once, whoever asks."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from sourceward.data import features
from sourceward.data.features import extract_features
from sourceward.nn.backbones import create_backbone
from tests.tiny_runs import tiny_images


def test_what_one_computes_another_waits_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    def slowly(*rest):
        calls.append(rest)
        time.sleep(0.2)
        return encode(*rest)

    encode = features.encode
    monkeypatch.setattr("sourceward.data.features.encode", slowly)
    data, backbone = tiny_images().of_domains("a"), create_backbone("tiny:conv")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(extract_features, data, backbone, torch.device("cpu"), False) for _ in range(3)]
        found = [one.result().items for one in asked]
    assert len(calls) == 1
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_a_cache_that_cannot_be_locked_costs_time_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "sourceward").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data, backbone = tiny_images().of_domains("a"), create_backbone("tiny:conv")
    assert extract_features(data, backbone, torch.device("cpu"), False).items.shape == (18, 128)
