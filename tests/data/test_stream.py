import numpy as np
import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.data import decode_images, open_dataset
from sourceward.data.stream import DomainBatches, fits_in_memory, in_order, stream_batches

DOMAINS = np.array([0] * 7 + [1] * 3 + [2] * 10)


def test_every_batch_has_so_many_of_each_domain():
    batches = DomainBatches(DOMAINS, per_domain=4, seed=1)
    for iteration in range(20):
        rows = batches[iteration]
        assert rows.shape == (3, 4)
        assert (DOMAINS[rows] == np.arange(3)[:, None]).all()


def test_every_epoch_shows_every_sample_once():
    batches = DomainBatches(DOMAINS, per_domain=5, seed=0)
    drawn = np.concatenate([batches[iteration][0] for iteration in range(7)])
    assert np.bincount(drawn, minlength=7)[:7].tolist() == [5] * 7
    assert sorted(drawn[:7]) == list(range(7))
    assert drawn[:7].tolist() != drawn[7:14].tolist()


def test_a_run_that_resumes_sees_the_same_batches():
    whole = list(DomainBatches(DOMAINS, per_domain=2, seed=3, stop=9))
    rest = list(DomainBatches(DOMAINS, per_domain=2, seed=3, start=4, stop=9))
    assert whole[4:] == rest
    assert whole != list(DomainBatches(DOMAINS, per_domain=2, seed=4, stop=9))


@pytest.mark.parametrize("workers", [0, 2])
def test_streaming_equals_loading(folder, workers):
    data = open_dataset(folder)
    images = decode_images(data, 8)
    batches = DomainBatches(data.domains, per_domain=3, stop=3)
    for batch, rows in zip(stream_batches(data, 8, batches, workers=workers), batches):
        assert batch.indices.tolist() == rows
        assert torch.equal(batch.images, images[rows])
        assert batch.labels.tolist() == data.labels[rows].tolist()
        assert batch.domains.tolist() == [0, 0, 0, 1, 1, 1]


def test_in_order_covers_everything_once(folder):
    data = open_dataset(folder)
    seen = [batch.indices for batch in stream_batches(data, 8, in_order(len(data), 7), workers=0)]
    assert torch.cat(seen).tolist() == list(range(24))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named_in_one_line(folder, put, workers):
    put("root/photo/cat/torn.png", b"nothing")
    data = open_dataset(folder)
    with pytest.raises(InputError, match=r"'photo/cat/torn\.png' of .* cannot be read") as error:
        list(stream_batches(data, 8, in_order(len(data), 8), workers=workers))
    assert "\n" not in str(error.value)


def test_small_datasets_fit_in_memory(folder):
    data = open_dataset(folder)
    assert fits_in_memory(data, 8)
    assert not fits_in_memory(data, 8, share=0.0)


def test_a_batch_needs_samples():
    with pytest.raises(InputError, match="`per_domain` to be 1 or more, but got 0"):
        DomainBatches(DOMAINS, per_domain=0)
