import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from sourceward._util.errors import InputError
from sourceward.data import Geometry, decode_image, decode_images, open_dataset
from sourceward.data.cache import cache_folder, image_keys
from sourceward.data.decode import resize_arrays


def encode(pixels, kind="png", mode=None):
    stream = io.BytesIO()
    Image.fromarray(pixels, mode).save(stream, kind)
    return stream.getvalue()


def test_pixels_survive_when_the_size_is_right():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.array_equal(decode_image(encode(pixels), Geometry(8, 8)), pixels.transpose(2, 0, 1))


def test_crop_cuts_the_centre_and_exact_stretches():
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 200
    assert (decode_image(encode(pixels), Geometry(10, 10)) == 200).all()
    stretched = decode_image(encode(pixels), Geometry(10, 10, "exact"))
    assert stretched[0, 5].tolist()[0] == 0
    assert stretched[0, 5].tolist()[-1] == 0


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_every_mode_becomes_rgb(mode):
    stream = io.BytesIO()
    Image.new("RGB", (9, 7), (200, 10, 10)).convert(mode).save(stream, "tiff")
    assert decode_image(stream.getvalue(), Geometry(5, 6)).shape == (3, 5, 6)


def test_sixteen_bit_gray_is_scaled_not_clipped():
    pixels = np.full((4, 4), 0x8000, dtype=np.uint16)
    assert np.unique(decode_image(encode(pixels), Geometry(4, 4))).tolist() == [0x80]


def test_a_large_jpeg_is_close_to_the_slow_way():
    smooth = np.linspace(0, 255, 800 * 800 * 3).reshape(800, 800, 3).astype(np.uint8)
    data = encode(smooth, "jpeg")
    fast = decode_image(data, Geometry(64, 64)).astype(int)
    slow = np.asarray(Image.open(io.BytesIO(data)).resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(fast - slow.transpose(2, 0, 1)).mean() < 2


@pytest.mark.parametrize(
    "shape", [Geometry(16, 16), Geometry(24, 24, crop_pct=0.8), Geometry(24, 10), Geometry(9, 30, "exact")]
)
def test_arrays_and_files_resize_alike(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    from_file = decode_image(encode(pixels), shape)
    from_array = resize_arrays(pixels.transpose(2, 0, 1)[None], shape)[0]
    assert np.abs(from_file.astype(int) - from_array.numpy().astype(int)).max() <= 1


def test_images_are_decoded_in_order_and_cached(folder, own_cache, monkeypatch):
    data = open_dataset(folder)
    images = decode_images(data, 8)
    assert images.shape == (24, 3, 8, 8)
    assert images.dtype == torch.uint8
    assert np.array_equal(images[7].numpy(), decode_image(data.items[7].read(), Geometry(8, 8)))
    assert len(list(own_cache.rglob("*.images.npy"))) == 1
    monkeypatch.setattr(type(data.items[0]), "read", None)  # from here on only the cache can answer
    assert torch.equal(decode_images(data, 8), images)
    assert len(list(own_cache.rglob("*.*"))) == 2  # images and keys, no temporary file


def test_the_cache_of_a_dataset_serves_its_subsets(folder, own_cache):
    data = open_dataset(folder)
    images = decode_images(data, 8)
    for part in (data.without("photo"), data.train_val()[0], data.select([5, 2])):
        assert torch.equal(decode_images(part, 8), images[[data.ids.index(name) for name in part.ids]])
    assert len(list(own_cache.rglob("*.images.npy"))) == 1
    decode_images(data.select([0]), 9)
    assert len(list(own_cache.rglob("*.images.npy"))) == 2


def test_every_image_is_cached_once(folder, own_cache):
    """Subsets that overlap, the smaller first: an image is found wherever it was cached."""
    data = open_dataset(folder)
    seen = []
    for rows in ([3, 1], range(10), range(24)):
        part = data.select(list(rows))
        images = decode_images(part, 8, progress=lambda done, total: seen.append(total))
        for row, image in zip(rows, images):
            assert np.array_equal(image.numpy(), decode_image(data.items[row].read(), Geometry(8, 8)))
    assert sorted(set(seen)) == [2, 8, 14]
    stored = [len(np.load(path)) for path in own_cache.rglob("*.keys.npy")]
    assert sum(stored) == len(data)


def test_cache_keys_do_not_depend_on_labels(folder):
    data = open_dataset(folder)
    relabelled = type(data)(**{**data.__dict__, "labels": data.labels[::-1].copy()})
    assert np.array_equal(image_keys(data), image_keys(relabelled))


def test_a_changed_file_is_decoded_again(folder, image_bytes):
    before = decode_images(open_dataset(folder), 8)
    path = folder / "photo/cat/0.png"
    path.write_bytes(image_bytes(99))
    os.utime(path, ns=(1, 1))
    assert not torch.equal(decode_images(open_dataset(folder), 8), before)


def test_writing_to_what_was_loaded_leaves_the_cache_alone(folder):
    data = open_dataset(folder)
    decode_images(data, 8)
    decode_images(data, 8).zero_()
    assert decode_images(data, 8).any()


def test_progress_is_reported(folder):
    seen = []
    decode_images(open_dataset(folder), 8, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (24, 24)


@pytest.fixture
def damaged(folder, put, image_bytes):
    put("root/photo/cat/torn.jpg", image_bytes(size=(64, 64), kind="jpeg")[:900])
    put("root/photo/dog/notes.png", b"this is no image")
    return open_dataset(folder)


def test_unreadable_images_are_named(damaged):
    with pytest.raises(InputError, match=r"2 of 26 images .* 'photo/cat/torn.jpg' \(.*truncated"):
        decode_images(damaged, 8)


def test_a_cache_that_cannot_be_written_is_a_warning(folder, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.warns(UserWarning, match="set SOURCEWARD_CACHE"):
        assert len(decode_images(open_dataset(folder), 8, cache_dir=blocked)) == 24


def test_texts_are_not_images(tmp_path):
    (tmp_path / "t.csv").write_text("domain,label,text\na,b,c\n")
    with pytest.raises(InputError, match="Expected a dataset of images"):
        decode_images(open_dataset(tmp_path / "t.csv"), 8)


@pytest.mark.parametrize("wrong", [{"height": 0}, {"fit": "pad"}, {"crop_pct": 0}, {"interpolation": "x"}])
def test_geometry_is_checked(wrong):
    with pytest.raises(InputError, match="Expected"):
        Geometry(**{"height": 8, "width": 8, **wrong})


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("SOURCEWARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sourceward"
