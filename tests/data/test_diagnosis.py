import json

import numpy as np
import pytest

from sourceward._util.errors import InputError
from sourceward.data import doctor, open_dataset


def test_a_healthy_folder(folder):
    found = doctor(folder)
    assert found.refusals == ()
    assert found.counts == ((4, 4, 4), (4, 4, 4))
    assert found.image_sizes.smallest == found.image_sizes.largest == (12, 10)
    assert found.imbalance == 1
    assert any("Train on 18 images of 2 source domains (photo, sketch)" in line for line in found.plan)
    assert json.loads(json.dumps(found.to_dict()))["num_samples"] == 24


def test_truncated_and_empty_files_are_refused(folder, put, image_bytes):
    put("root/photo/cat/torn.jpg", image_bytes(size=(64, 64), kind="jpeg")[:900])
    put("root/photo/cat/empty.png", b"")
    found = doctor(folder)
    assert {p.where for p in found.broken} == {"photo/cat/torn.jpg", "photo/cat/empty.png"}
    assert [(r.reason, r.fix) for r in found.refusals] == [
        ("2 files cannot be read, first 'photo/cat/empty.png'.", "Replace or remove them.")
    ]
    assert len(doctor(folder, quick=True).broken) == 1
    put("root/photo/cat/junk.png", b"no image")
    assert [p.message for p in doctor(folder).broken if "junk" in p.where] == ["cannot identify image file"]


def test_a_truncated_file_of_the_target_is_reported_but_not_refused(folder, put):
    put("root/photo/cat/junk.png", b"no image")
    put("root/photo/cat/empty.png", b"")
    found = doctor(folder, target="photo")
    assert len(found.broken) == 2
    assert found.refusals == ()


def test_duplicates_across_domains_only(folder, put):
    put("root/photo/cat/same.png", seed=7)
    put("root/photo/cat/again.png", seed=7)
    assert doctor(folder).duplicates == ()
    put("root/sketch/dog/copy.png", seed=7)
    assert doctor(folder).duplicates == (
        ("photo/cat/again.png", "photo/cat/same.png", "sketch/dog/copy.png"),
    )


def test_equal_samples_of_several_classes_and_within_one(folder, put):
    found = doctor(folder)
    assert (found.contradictions, found.repeats) == ((), ())
    put("root/photo/cat/same.png", seed=7)
    put("root/photo/cat/again.png", seed=7)
    put("root/sketch/cat/other.png", seed=7)
    put("root/photo/dog/a.png", seed=8)
    put("root/photo/owl/b.png", seed=8)
    found = doctor(folder)
    assert found.contradictions == (("photo/dog/a.png", "photo/owl/b.png"),)
    assert found.repeats == (("photo/cat/again.png", "photo/cat/same.png"),)
    assert found.refusals == ()


def test_a_missing_class_is_refused_unless_allowed_or_in_the_target(folder, put):
    put("root/clay/cat/1.png")
    found = doctor(folder)
    assert found.missing == (("clay", "dog"), ("clay", "owl"))
    assert found.refusals[0].reason.startswith("Domain 'clay' has no images of class 'dog' (1 more such gap")
    assert "--allow-missing" in found.refusals[0].fix
    assert doctor(folder, allow_missing=True).refusals == ()
    assert doctor(folder, target="clay").refusals == ()


def test_the_plan_for_one_source_says_what_its_chains_start_from(folder):
    found = doctor(folder, target="photo")
    assert found.refusals == ()
    assert any(
        "start training chains from corrupted copies of its images (speckle_noise" in line
        for line in found.plan
    )
    assert not any("training chains" in line for line in doctor(folder).plan)


def test_no_source_or_one_class_is_refused(folder, put, tmp_path):
    assert doctor(folder, target=("photo", "sketch")).refusals[0].reason == "There is no source domain."
    put("single/a/x/1.png")
    put("single/b/x/1.png")
    assert doctor(tmp_path / "single").refusals[0].reason == "There is only one class."


def test_data_without_validation_samples_is_refused(put, tmp_path):
    for name in ("a/x", "a/y", "b/x", "b/y"):
        put(f"tiny/{name}/1.png")
    assert doctor(tmp_path / "tiny").refusals[0].reason.startswith("There are no validation samples")


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ([True] * 8, "Domain '0' has no training samples: the given split uses all of them"),
        ([False, False, True, True] * 2, "Domain '1' has no training samples: the given split uses all"),
        ([False] * 8, "There are no validation samples: the given split has none."),
    ],
)
def test_a_given_split_without_one_of_its_parts(held, reason, tmp_path):
    features, label = np.random.default_rng(0).normal(size=(8, 2)), [0, 1] * 4
    arrays = {"features": features, "label": label, "domain": [0, 0, 1, 1] * 2}
    np.savez(tmp_path / "b.npz", **arrays, is_validation=held)
    assert doctor(tmp_path / "b.npz").refusals[0].reason.startswith(reason)


def test_features_that_are_not_finite(tmp_path):
    features = np.random.default_rng(0).normal(size=(8, 2))
    features[3] = np.inf
    np.savez(tmp_path / "b.npz", features=features, label=[0, 1] * 4, domain=[0, 0, 1, 1] * 2)
    assert doctor(tmp_path / "b.npz").refusals[0].reason == "1 feature rows hold NaN or infinity."


def test_features_whose_squares_overflow(tmp_path):
    features = np.random.default_rng(0).normal(size=(8, 2))
    features[3] = 1e30
    domain = [0, 0, 1, 1] * 2
    np.savez(tmp_path / "b.npz", features=features, label=[0, 1] * 4, domain=domain)
    refusal = doctor(tmp_path / "b.npz").refusals[0]
    assert (refusal.reason[-23:], refusal.fix) == ("of `features` is 1e+30.", "Rescale `features`.")
    assert doctor(tmp_path / "b.npz", target="1").refusals == ()


def test_a_folder_that_is_no_dataset_is_described(put, tmp_path):
    put("flat/1.png")
    put("flat/2.png")
    found = doctor(tmp_path / "flat")
    assert found.notes[0].message == "<root>: 2 images, 0 other files."
    assert "found 2 images directly under <root>" in found.refusals[0].reason


def test_a_path_that_is_not_there_stays_an_error():
    with pytest.raises(InputError, match="No such file or folder"):
        doctor("nowhere/at/all")


def test_an_unknown_target(folder):
    with pytest.raises(InputError, match="Did you mean 'sketch'"):
        doctor(folder, target="sketches")


def test_real_tweets(shared):
    found = doctor(open_dataset(f"pheme:{shared / 'data/pheme/pheme.csv'}"))
    assert found.refusals == ()
    assert found.num_samples == 5_624
