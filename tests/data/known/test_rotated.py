import numpy as np
import pytest
from PIL import Image

from sourceward._util.errors import InputError
from sourceward.data import open_dataset
from sourceward.data.known.mnist import rotate_arrays


@pytest.fixture(scope="module")
def mnist(shared):
    return f"rotated_mnist:{shared / 'data/mnist'}"


def test_rotation_agrees_with_pil():
    smooth = np.add.outer(np.arange(28), np.arange(28)).astype(np.uint8) * 4
    turned = rotate_arrays(smooth[None], 30)[0].astype(int)
    reference = np.asarray(Image.fromarray(smooth).rotate(30, Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(turned - reference)[6:-6, 6:-6].max() <= 2


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_rotations_by_90_degrees_are_exact(quarters):
    image = np.random.default_rng(0).integers(0, 256, (2, 9, 9), dtype=np.uint8)
    assert np.array_equal(rotate_arrays(image, 90 * quarters), np.rot90(image, quarters, axes=(1, 2)))


@pytest.mark.parametrize(("setting", "sources"), [("15-75", 5), ("30-60", 3), ("30-45", 2)])
def test_the_settings_of_the_paper(mnist, setting, sources):
    data = open_dataset(mnist, setting=setting, per_domain=200)
    assert data.targets == ("0", "90")
    assert len(data.without(data.targets).domain_names) == sources
    assert data.counts().sum(axis=1).tolist() == [200] * (sources + 2)
    assert data.items.shape[1:] == (1, 28, 28)


def test_an_image_validates_in_all_domains_or_in_none(mnist):
    data = open_dataset(mnist, setting="30-45", per_domain=100)
    assert data.split_by == "one image in ten, at all its angles"
    held = {(d, name.split("/")[1]) for d, name, s in zip(data.domains, data.ids, data.split) if s == "val"}
    assert len(held) == 40
    assert len({number for _, number in held}) == 10


def test_distinct_images_are_shared_by_no_two_domains(mnist):
    data = open_dataset(mnist, images="distinct", per_domain=100)
    numbers = [name.split("/")[1] for name in data.ids]
    assert len(set(numbers)) == len(numbers) == 700


def test_any_angles(mnist):
    data = open_dataset(mnist, angles=(10, 20), targets=(33.5,), per_domain=50, part="test")
    assert data.domain_names == ("10", "20", "33.5")
    assert data.targets == ("33.5",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"setting": "15-60"}, "Unknown setting '15-60'"),
        ({"per_domain": 70_000}, "`per_domain` to be 1 to 60,000"),
        ({"images": "some"}, "Unknown choice of images"),
        ({"angle": 3}, "Unknown option 'angle' for rotated_mnist: it takes per_domain, setting, angles"),
    ],
)
def test_wrong_options(mnist, options, message):
    with pytest.raises(InputError, match=message):
        open_dataset(mnist, **options)


def test_a_truncated_idx_file(put, tmp_path):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        put(f"root/{name}", bytes([0, 0, 8, 1, 0, 0, 0, 9, 1, 2]))
    with pytest.raises(InputError, match="is not a complete idx file"):
        open_dataset(f"rotated_mnist:{tmp_path / 'root'}")
