"""Sources play the unseen domain, also for backbones that never saw them."""

from dataclasses import replace

import numpy as np
import pytest

from sourceward.data import DomainDataset
from sourceward.fitting import fit
from sourceward.model import load
from sourceward.validation.leave_one_domain_out import pretend
from tests.tiny_runs import (
    FINETUNE,
    TINY,
    tiny_images,
)

AUTO = {**TINY, "num_steps": "auto"}


def four_domains() -> DomainDataset:
    """Three sources and a target."""
    return replace(tiny_images(), domains=np.arange(54) % 4, domain_names=("a", "b", "c", "d"))


@pytest.mark.parametrize("options", [{"freeze": True}, {}, {"settings": {"crossfit": True}}])
def test_the_sources_say_whether_adaptation_will_help(options, tmp_path):
    options = {"backbone": "tiny:conv", "weights": None, "allow_missing": True, **options}
    settings = AUTO | ({} if options.get("freeze") else FINETUNE) | options.pop("settings", {})
    options["settings"] = settings
    model = fit(four_domains(), out=tmp_path / "run", target="d", progress=False, **options)
    told = model.info["expected_gain"]
    assert set(told["per_source"]) == {"a", "b", "c"}
    assert told["seen"] == (not options.get("freeze") and not settings.get("crossfit", False))
    assert model.settings.num_steps == told["num_steps"]
    assert told["adapts"] or model.settings.aggregation == "mean"
    assert "Will adaptation help" in (tmp_path / "run" / "README.md").read_text()
    assert not (tmp_path / "run" / "crossfit").exists()
    assert load(tmp_path / "run").settings == model.settings


def test_a_killed_cross_fit_goes_on_to_the_same_promise(tmp_path, monkeypatch):
    options = {"backbone": "tiny:conv", "weights": None, "allow_missing": True, "progress": False}
    options["settings"] = AUTO | FINETUNE | {"crossfit": True}
    whole = fit(four_domains(), out=tmp_path / "whole", target="d", **options)
    calls = []

    def killed(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return pretend(*args)

    with monkeypatch.context() as patch:
        patch.setattr("sourceward.validation.crossfit.pretend", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(four_domains(), out=tmp_path / "run", target="d", **options)
    again = fit(four_domains(), out=tmp_path / "run", target="d", **options)
    assert again.info["expected_gain"] == whole.info["expected_gain"]


def test_a_run_that_was_killed_while_tidying_is_tidied(tmp_path):
    options = {"backbone": "tiny:conv", "weights": None, "allow_missing": True, "progress": False}
    options |= {"settings": TINY | FINETUNE, "target": "d"}
    fit(four_domains(), out=tmp_path / "run", **options)
    (tmp_path / "run" / "crossfit" / "0").mkdir(parents=True)
    for name in ("finetuned.safetensors", "heads.safetensors"):
        (tmp_path / "run" / name).write_bytes(b"left")
    before = sorted(p.name for p in (tmp_path / "run").iterdir())
    fit(four_domains(), out=tmp_path / "run", **options)
    left = {"crossfit", "finetuned.safetensors", "heads.safetensors"}
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [n for n in before if n not in left]
