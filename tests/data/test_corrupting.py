import numpy as np
import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.data import corrupted_domains, decode_images, open_dataset
from sourceward.data.corrupting import corrupt_batch, corrupt_cycling
from sourceward.data.corruptions import corrupt
from sourceward.data.dataset import build


@pytest.fixture
def clean():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 28, 28), dtype=np.uint8)
    split = ["train"] * 6 + ["val"] * 2
    return build("image", pixels, list("xyxyxyxy"), ["0"] * 8, [str(n) for n in range(8)], split=split)


def test_targets_are_the_validation_images_corrupted(clean):
    data = corrupted_domains(clean, ["fog", "gaussian_noise"], severity=3, size=32)
    assert data.domain_names == ("clean", "fog", "gaussian_noise")
    assert data.targets == ("fog", "gaussian_noise")
    assert data.counts().sum(axis=1).tolist() == [8, 2, 2]
    assert data.items.shape == (12, 3, 32, 32)
    assert not np.array_equal(data.items[8:10], data.items[6:8])
    again = corrupted_domains(clean, ["fog", "gaussian_noise"], severity=3, size=32)
    assert data.fingerprint() == again.fingerprint()


def test_source_corruptions_make_sources_whose_copies_share_a_split(clean):
    data = corrupted_domains(clean, ["fog"], test=clean, source_corruptions=["saturate", "spatter"], size=32)
    assert data.without(data.targets).domain_names == ("clean", "saturate", "spatter")
    assert data.counts().sum(axis=1).tolist() == [8, 8, 8, 8]
    sides = {(name.split("/")[1], side) for name, side in zip(data.ids, data.split) if "fog" not in name}
    assert len(sides) == 8


def test_files_are_corrupted_as_they_are_read(folder):
    photos = open_dataset(folder).of_domains("photo")
    data = corrupted_domains(photos, ["contrast", "shot_noise"], test=photos, size=32)
    images = decode_images(data, 32)
    assert images.shape == (36, 3, 32, 32)
    assert np.array_equal(images, decode_images(data, 32, cache_dir=""))
    assert len({image.numpy().tobytes() for image in images}) == 36


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruptions": ["frots"]}, "Did you mean 'frost'"),
        ({"severity": 6}, "`severity` to be 1"),
        ({"source_corruptions": ["fog"]}, "both hold fog"),
    ],
)
def test_wrong_options(clean, options, message):
    with pytest.raises(InputError, match=message):
        corrupted_domains(clean, **options)


def test_severities_cycle_whatever_the_batches():
    """The third image has the same severity in one call as in two."""
    images = torch.randint(256, (7, 3, 32, 32), dtype=torch.uint8)
    whole = corrupt_cycling(images, "saturate", 1, torch.Generator())
    pieces = [corrupt_cycling(images[a:b], "saturate", 1 + a, torch.Generator()) for a, b in ((0, 3), (3, 7))]
    assert torch.equal(whole, torch.cat(pieces))
    for row in range(7):
        assert torch.equal(whole[row], corrupt(images[row : row + 1], "saturate", (1 + row) % 5 + 1)[0])


def test_images_of_a_batch_are_corrupted_by_the_extra_corruptions_in_turn():
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 3, 32, 32), dtype=np.uint8))
    copies = corrupt_batch(images, torch.Generator().manual_seed(0))
    assert copies.shape == images.shape
    assert copies.dtype == torch.uint8
    blurred = corrupt_cycling(images[1::4], "gaussian_blur", 1, torch.Generator())
    saturated = corrupt_cycling(images[3::4], "saturate", 3, torch.Generator())
    assert torch.equal(copies[1::4], blurred)
    assert torch.equal(copies[3::4], saturated)
    assert all((copy != image).any() for copy, image in zip(copies, images, strict=True))
