import numpy as np
import torch
from sklearn.decomposition import PCA

from sourceward.functional import principal_components
from sourceward.nn import Projected
from tests.helpers import make_generator


def test_components_span_what_scikit_learn_finds():
    feature = torch.randn(60, 7, generator=make_generator()) @ torch.randn(7, 7, generator=make_generator(1))
    ours = principal_components(feature, 3)
    theirs = PCA(3, svd_solver="full").fit(feature.double().numpy()).components_.T
    np.testing.assert_allclose(np.abs(ours.T.numpy() @ theirs), np.eye(3), atol=1e-5)


def test_projection_follows_the_backbone_and_is_saved_but_not_trained():
    backbone = torch.nn.Linear(5, 4)
    projected = Projected(backbone, torch.eye(4)[:, :2])
    inputs = torch.randn(3, 5, generator=make_generator())
    assert torch.equal(projected(inputs), backbone(inputs)[:, :2])
    assert "projection" in projected.state_dict()
    assert "projection" not in dict(projected.named_parameters())


def test_a_sample_has_the_same_components_alone_and_among_others():
    rows, directions = torch.randn(33, 600, generator=make_generator()), torch.randn(600, 32)
    together = Projected(None, directions).project(rows)
    for count in (1, 2, 5):
        assert torch.equal(Projected(None, directions).project(rows[:count]), together[:count]), count
