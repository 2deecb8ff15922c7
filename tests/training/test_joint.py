"""What a run writes when pretend targets ask for another walk than the favourite."""

from sourceward.settings import AdaptSettings
from sourceward.training.joint import Run
from tests.tiny_runs import fit_tiny, tiny_images


def test_a_frozen_backbone_may_be_told_not_to_adapt(tmp_path, monkeypatch):
    """Validation is looked at again with what was tuned; the samples are features by then, not images."""
    off = AdaptSettings(5).off()
    monkeypatch.setattr(Run, "_tuned", lambda self: (off, None))
    model = fit_tiny(tiny_images(), tmp_path / "run", freeze=True)
    assert model.settings == off
    assert model.info["metrics"]["adapted"] == model.info["metrics"]["unadapted"]
