"""The first cases of the fuzz campaign: `make fuzz` runs all of them."""

import os
import tempfile

import pytest

from tests.fuzz.campaign import SHARES, make_world, plan, run_case

CASES = 300
"""Of all kinds together; the campaign has 10,000."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    before, cache, temporary = os.getcwd(), os.environ.get("SOURCEWARD_CACHE"), tempfile.tempdir
    yield make_world(tmp_path_factory.mktemp("fuzz"))
    os.chdir(before)
    tempfile.tempdir = temporary
    if cache is not None:
        os.environ["SOURCEWARD_CACHE"] = cache


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", SHARES)
def test_odd_inputs_are_used_or_refused(world, kind):
    cases = plan(CASES, kinds=[kind])
    found = [run_case(world, kind, number, seed=0) for _, number in cases]
    assert set(found) <= {"used", "refused"}
    # A damaged cache is decoded again, so that all of its cases are used.
    assert "refused" in found or kind == "caches", "nothing odd among them"
