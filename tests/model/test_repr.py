"""What a model and a result print is a few lines."""

import re
from dataclasses import replace

import numpy as np

import sourceward as sw
from sourceward.adaptation.base import select_rows
from sourceward.adaptation.notebook import HEIGHT, WIDTH
from tests.helpers import QUICK, make_domains
from tests.tiny_runs import fit_tiny, four_features


def test_model(tmp_path):
    model = fit_tiny(four_features(), tmp_path / "run", target="d")
    shown = repr(model)
    assert "3 classes: x, y, z\n3 sources: a, b, c" in shown
    assert "expected gain: not estimated" in shown
    assert "expected accuracy on an unseen domain: not estimated" in shown
    assert shown.count("\n") < 6
    assert "<li>3 classes: x, y, z</li>" in model._repr_html_()


def test_a_model_in_a_notebook_has_a_row_for_each_held_out_source(tmp_path):
    data = replace(four_features(), domain_names=("<b>", "b", "c", "d"))
    model = fit_tiny(data, tmp_path / "run", target="d", settings={"num_steps": "auto"})
    shown = model._repr_html_()
    assert shown.count("<tr>") == 4
    assert "<td>&lt;b&gt;</td>" in shown
    assert "expected accuracy on an unseen domain: " in repr(model)
    assert " % (90 % interval for a new domain: " in repr(model)


def test_result():
    X, y, domain = make_domains()
    result = sw.EnergyAdapter(**QUICK).fit(X, y, domain).adapt(X)
    assert repr(result).startswith("AdaptationResult: 120 samples, 3 classes, 3 sources\nstatus: ")
    assert repr(result).count("\n") == 2
    assert result._repr_html_().count("<tr>") == 11
    empty = select_rows(result, np.zeros(len(result), bool))
    assert "0 samples" in repr(empty)


def test_a_result_in_a_notebook_has_a_plot_of_its_chains():
    X, y, domain = make_domains()
    est = sw.EnergyAdapter(**QUICK).fit(X, y, domain)
    plain, recorded = est.adapt(X), est.adapt(X[:2], trajectory=True)
    assert plain._repr_html_().count("<polyline") == 3, "a line for each source"
    shown = recorded._repr_html_()
    assert shown.count("<polyline") == 2 * 3, "a chain for each sample and source"
    first = re.search(r'points="([^"]*)"', shown).group(1).split(" ")
    assert len(first) == QUICK["num_steps"] + 1
    for x, height in (map(float, point.split(",")) for point in first):
        assert 0 <= x <= WIDTH
        assert 0 <= height <= HEIGHT
    assert "<svg" not in est.set_params(num_steps=0).adapt(X)._repr_html_(), "no step, no empty plot"
