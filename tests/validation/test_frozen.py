"""Features of a frozen backbone for training and validation, and the amplitude-mixed copies among them."""

import numpy as np
import pytest
import torch

from sourceward._util.devices import ALONE
from sourceward.data.transforms import make_copies
from sourceward.nn.backbones import ImagePreprocessing, create_backbone
from sourceward.training.configuration import FitSettings
from sourceward.training.run_folder import Context, RunFolder
from sourceward.validation.folds import chosen_rows
from sourceward.validation.frozen import FrozenSources, source_amplitudes
from tests.tiny_runs import four_domains, four_features

CPU = torch.device("cpu")


@pytest.fixture
def frozen(tmp_path):
    """From whether copies are trained on to the sources a, b and c of `four_domains`, and their backbone."""
    data = four_domains().without("d")
    rows = [np.flatnonzero(data.domains == code)[:8] for code in range(3)]
    backbone = create_backbone("tiny:conv", weights=None, image_size=16).eval().requires_grad_(False)
    amplitudes = source_amplitudes(data, rows, backbone, CPU)

    def build(copies=True):
        settings = FitSettings(fourier_copies=copies)
        context = Context(RunFolder(tmp_path, {}), settings, 0, ALONE, CPU, progress=False)
        return FrozenSources(data, rows, backbone, context, amplitudes)

    return build


class Small(ImagePreprocessing):
    copy_size = (12, 10)


def mixed(frozen, row, toward, size=None):
    """Features of one image mixed toward one source, from the transform of test time."""
    images = torch.from_numpy(frozen.dataset.items[[row]])
    copies = list(make_copies("fourier", images, 3, frozen.amplitudes, size))
    return frozen.backbone(frozen.backbone.preprocessing.normalize(copies[toward].images))[0]


def test_every_row_has_a_copy_mixed_toward_another_source(frozen):
    ours = frozen()
    for number, source in enumerate(ours.sources()):
        assert len(source.copy) == len(source.feature) == 8
        assert source.copy_of.tolist() == list(range(8))
        assert set(ours.toward[number]) == {0, 1, 2} - {number}
        row, toward = ours.rows[number][3], ours.toward[number][3]
        torch.testing.assert_close(source.copy[3], mixed(ours, row, toward), atol=1e-4, rtol=1e-4)


def test_a_fold_has_no_copy_mixed_toward_its_held_out_source(frozen):
    ours = frozen()
    for number, fold in enumerate(ours.folds(["fourier"])):
        assert fold.held_out == ours.dataset.domain_names[number]
        others = [other for other in range(3) if other != number]
        for other, source in zip(others, fold.train, strict=True):
            assert source.copy_of.tolist() == np.flatnonzero(ours.toward[other] != number).tolist()
            assert len(source.copy) == 4
        assert [part.weight for part in fold.copies["fourier"]] == [0.5, 0.5]
        assert len(fold.label) == len(fold.feature) == len(fold.copies["fourier"][0].feature) == 8
        feature = ours.feature[ours.rows[number]]
        assert all((feature == row).all(1).any() for row in fold.feature)


def test_small_copies_are_tested_and_large_ones_trained_on(frozen):
    ours = frozen()
    ours.backbone.preprocessing = Small(**vars(ours.backbone.preprocessing))
    fold = next(ours.folds(["fourier"]))
    row = ours.rows[0][chosen_rows(8)[0]]
    small = mixed(ours, row, 1, (12, 10))
    torch.testing.assert_close(fold.copies["fourier"][0].feature[0], small, atol=1e-4, rtol=1e-4)
    row, toward = ours.rows[0][3], ours.toward[0][3]
    torch.testing.assert_close(ours.copies[0][3], mixed(ours, row, toward), atol=1e-4, rtol=1e-4)


def test_without_copies_rows_stand_alone(frozen):
    ours = frozen(copies=False)
    assert all(source.copy is None for source in ours.sources())
    assert all(not fold.copies and fold.train[0].copy is None for fold in ours.folds([]))


def test_features_have_neither_amplitudes_nor_copies(tmp_path):
    data = four_features().without("d")
    rows = [np.flatnonzero(data.domains == code) for code in range(3)]
    assert source_amplitudes(data, rows, None, CPU) is None
    context = Context(RunFolder(tmp_path, {}), FitSettings(), 0, ALONE, CPU, progress=False)
    ours = FrozenSources(data, rows, None, context, None)
    for source, own in zip(ours.sources(), rows, strict=True):
        np.testing.assert_array_equal(source.feature, data.items[own])
        assert source.copy is None
