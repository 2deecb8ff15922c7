"""Sources that differ by a turn are noticed, and others are not."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sourceward.data.dataset import build
from sourceward.data.image_ops import rotate as turn
from sourceward.data.known.rotated import rotate_arrays as rotate
from sourceward.data.loading import Resident
from sourceward.fitting import fit
from sourceward.training.task import Prepared
from sourceward.validation.imagined import Turned
from sourceward.validation.turns import differ_by_turn, is_turned
from tests.tiny_runs import FINETUNE, TINY, tiny_images
from tests.validation.test_views import OPTIONS

EACH = 12


def hands(angles, classes=("left", "right"), noise=60):
    """Clock hands that point one way or the other, a domain for each angle; (n, 1, 24, 24)."""
    rng = np.random.default_rng(0)
    upright = np.zeros((len(classes), 24, 24), dtype=np.uint8)
    for code in range(len(classes)):
        upright[code, 11:14, 2 + 10 * code : 12 + 10 * code] = 180
    rows = [(angle, code) for angle in angles for code in range(len(classes)) for _ in range(EACH)]
    pixels = [rotate(upright[[code]], angle) + rng.integers(0, noise, (1, 24, 24)) for angle, code in rows]
    names = [classes[code] for _, code in rows]
    domains = [f"{angle:g}" for angle, _ in rows]
    ids = [str(row) for row in range(len(rows))]
    return build("image", np.stack(pixels).astype(np.uint8), names, domains, ids, name="hands")


def prepared(data, keep=lambda rows: rows):
    pixels = torch.from_numpy(data.items).expand(-1, 3, -1, -1)
    own = [keep(np.flatnonzero(data.domains == code)) for code in range(len(data.domain_names))]
    order, ends = torch.from_numpy(np.concatenate(own)), np.cumsum([0, *map(len, own)])
    train = [slice(int(a), int(b)) for a, b in pairwise(ends)]
    labels = torch.from_numpy(data.labels)[order]
    return Prepared(data, Resident(pixels[order], lambda rows: rows), labels, train, train)


@pytest.mark.parametrize(
    ("angles", "turned"), [((0, 30, 45), True), ((10, 32), True), ((20, 20.5, 19.5), False), ((0,), False)]
)
def test_turned_sources_are_noticed(angles, turned):
    assert differ_by_turn(prepared(hands(angles))) is turned


def test_a_class_that_a_source_lacks_does_not_matter():
    data = hands((0, 30))
    few = prepared(data, lambda rows: rows[data.labels[rows] == 1] if rows[0] == 0 else rows)
    assert differ_by_turn(few)


def test_sources_without_a_class_in_common_tell_nothing():
    data = hands((0, 30))
    apart = prepared(data, lambda rows: rows[data.labels[rows] == int(rows[0] == 0)])
    assert not differ_by_turn(apart)


def test_wide_images_are_turned_as_they_are():
    bar = np.zeros((1, 40, 160), dtype=np.uint8)
    bar[:, 18:22, 50:110] = 200
    slanted = turn(torch.from_numpy(bar[:, None]).float(), torch.tensor([30.0])).byte().numpy()[:, 0]
    pixels = np.repeat(np.concatenate([bar, slanted]), EACH, axis=0)[:, None]
    domains = ["a"] * EACH + ["b"] * EACH
    data = build(
        "image", pixels, ["x"] * len(domains), domains, [*map(str, range(len(domains)))], name="wide"
    )
    assert differ_by_turn(prepared(data))


def test_other_differences_are_no_turn():
    assert not differ_by_turn(prepared(tiny_images()))
    noise = torch.rand(5, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    flat = torch.full_like(noise, 0.5)
    assert not is_turned(noise, flat)
    assert not is_turned(flat, noise), "a turn smooths noise, which makes no turned copy"


def test_a_fit_whose_sources_are_turned_asks_about_turns(tmp_path):
    data = hands((0, 30, 45, 60))
    model = fit(data, out=tmp_path / "run", target="60", settings=TINY | FINETUNE, **OPTIONS)
    told = model.info["tta_gain"]
    assert told["views"] == "turn"
    assert model.views == ("turn" if told["adapts"] else "")
    assert {"0 turned by 45", "0 turned by -45", "45 turned by -45"} < set(told["per_source"])
    assert {"0", "30", "45"} == set(told["home"])


def test_an_imagined_domain_is_the_samples_turned():
    data = prepared(hands((0,), noise=1))
    shown = torch.cat([*Turned(data.samples, 90.0).batches(slice(0, 5))])
    assert torch.equal(shown, data.samples.rows[:5].rot90(1, (2, 3)))
