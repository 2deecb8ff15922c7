"""Long feature extraction is announced with its time and disk, and what the cache holds is not."""

import pytest

from sourceward.fitting import pipeline
from tests.tiny_runs import fit_tiny, four_domains


@pytest.mark.parametrize("progress", [None, False])
def test_an_extraction_is_announced_once(progress, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "LONG_SECONDS", 0.0)
    options = {"target": "d", "freeze": True, "progress": progress}
    fit_tiny(four_domains(), tmp_path / "first", **options)
    said = capsys.readouterr().err
    assert ("passes of tiny:conv on cpu, about " in said) == (progress is None)
    fit_tiny(four_domains(), tmp_path / "second", **options)
    assert "passes of" not in capsys.readouterr().err, "features are in the cache"
