"""Features of a frozen backbone: computed once and cached on disk."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from sourceward.data import cache_folder, features
from sourceward.data.features import extract_amplitude_mixed, extract_corrupted, extract_features
from sourceward.data.loading import prepare_samples
from sourceward.nn.alone import encode_alone
from sourceward.nn.backbones import create_backbone
from sourceward.nn.backbones.several import join
from tests.tiny_runs import tiny_images

CPU = torch.device("cpu")


@pytest.fixture
def encoded(monkeypatch):
    """The calls that compute features."""
    calls, encode = [], features.encode

    def slowly(*rest):
        calls.append(rest)
        time.sleep(0.2)
        return encode(*rest)

    monkeypatch.setattr(features, "encode", slowly)
    return calls


@pytest.fixture
def backbone():
    return create_backbone("tiny:conv", weights=None, image_size=32)


def test_what_one_computes_another_waits_for(encoded, backbone):
    data = tiny_images().of_domains("a")
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(extract_features, data, backbone, CPU, False) for _ in range(3)]
        found = [future.result().items for future in futures]
    assert len(encoded) == 1
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_a_torn_file_is_computed_again(encoded, backbone):
    data = tiny_images().of_domains("a")
    first = extract_features(data, backbone, CPU, False).items
    (file,) = (cache_folder() / "features").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    np.testing.assert_array_equal(extract_features(data, backbone, CPU, False).items, first)
    assert len(encoded) == 2


def test_the_size_of_copies_does_not_change_the_features_of_images(encoded, backbone):
    data = tiny_images().of_domains("a")
    first = extract_features(data, backbone, CPU, False).items
    backbone.preprocessing = replace(backbone.preprocessing, copy_scale=0.5)
    np.testing.assert_array_equal(extract_features(data, backbone, CPU, False).items, first)
    assert len(encoded) == 1, "they are found in the cache"


def test_changed_copies_are_cached_by_what_changed_them(encoded, backbone):
    data = tiny_images().of_domains("a")
    amplitudes = torch.rand(2, 3, 32, 17, generator=torch.Generator().manual_seed(0))
    toward = np.arange(len(data)) % 2

    def mixed(amplitudes, toward, size=None):
        return extract_amplitude_mixed(data, backbone, amplitudes, toward, CPU, False, size)

    first = mixed(amplitudes, toward)
    np.testing.assert_array_equal(mixed(amplitudes, toward), first)
    assert len(encoded) == 1
    assert not np.array_equal(mixed(amplitudes, 1 - toward), first)
    assert not np.array_equal(mixed(2 * amplitudes, toward), first)
    assert not np.array_equal(mixed(amplitudes, toward, (24, 20)), first)
    one, other = (extract_corrupted(data, backbone, CPU, seed, False) for seed in (0, 1))
    assert one.shape == other.shape == (4 * len(data), backbone.dim)
    assert not np.array_equal(one, other)


def test_a_combination_finds_the_features_of_backbones_that_another_computed(monkeypatch, backbone):
    data = tiny_images().of_domains("a")
    others = [create_backbone("tiny:conv", weights=None, image_size=32) for _ in range(2)]
    for place, other in enumerate(others):  # each has a normalisation of its own
        other.preprocessing = replace(other.preprocessing, mean=(0.1 * place,) * 3)
    extract_features(data, backbone, CPU, False)
    extract_features(data, join(others), CPU, False)
    amplitudes = torch.rand(2, 3, 32, 17, generator=torch.Generator().manual_seed(0))
    toward = np.arange(len(data)) % 2
    for some in ([backbone], others):
        extract_amplitude_mixed(data, join(some), amplitudes, toward, CPU, False)
    every = join([backbone, *others]).eval()
    images = prepare_samples(data, every, CPU, show=False).batches(slice(0, len(data)))
    expected = torch.cat(encode_alone([(every, image[None]) for batch in images for image in batch]))

    monkeypatch.setattr(features, "encode", None)  # nothing is left to compute
    assert features.has_features(data, every, CPU)
    found = extract_features(data, every, CPU, False).items
    np.testing.assert_array_equal(found, expected.numpy())
    assert extract_amplitude_mixed(data, every, amplitudes, toward, CPU, False).shape == found.shape


def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(tmp_path, monkeypatch, encoded, backbone):
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("SOURCEWARD_CACHE", str(tmp_path / "file"))
    data = tiny_images().of_domains("a")
    for _ in range(2):
        assert extract_features(data, backbone, CPU, False).items.shape == (18, 128)
    assert len(encoded) == 2


def test_a_domain_goes_on_after_a_kill(monkeypatch, backbone):
    monkeypatch.setattr(features, "CHUNK", 8)
    data, encode, calls = tiny_images().of_domains("a"), features.encode, []

    def killed(*rest):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(rest)
        return encode(*rest)

    monkeypatch.setattr(features, "encode", killed)
    with pytest.raises(KeyboardInterrupt):
        extract_features(data, backbone, CPU, False)
    resumed = []
    monkeypatch.setattr(features, "encode", lambda *rest: resumed.append(rest) or encode(*rest))
    found = extract_features(data, backbone, CPU, False).items
    assert (len(calls), len(resumed)) == (2, 1), "18 images are chunks of 8, 8 and 2"
    monkeypatch.setattr(features, "CHUNK", 2048)
    np.testing.assert_array_equal(extract_features(data, backbone, CPU, False).items, found)


def test_copies_of_chunks_are_those_of_the_whole(monkeypatch, backbone):
    data = tiny_images().of_domains("a")
    amplitudes = torch.rand(2, 3, 32, 17, generator=torch.Generator().manual_seed(0))
    toward = np.arange(len(data)) % 2
    whole = extract_amplitude_mixed(data, backbone, amplitudes, toward, CPU, False)
    monkeypatch.setattr(features, "CHUNK", 5)
    np.testing.assert_array_equal(
        extract_amplitude_mixed(data, backbone, amplitudes, toward, CPU, False), whole
    )
