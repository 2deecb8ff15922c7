"""Samples that were saved and lost: which, and what there is to look at."""

import io

import numpy as np
from PIL import Image

from sourceward.model.examples import SIDE, saved_and_lost, show
from tests.tiny_runs import CLASSES, image_folder, tiny_features, tiny_images, tiny_texts


def predictions(dataset, wrong):
    """Probabilities that are right but for the rows in `wrong`."""
    labels = np.where(np.isin(np.arange(len(dataset)), wrong), (dataset.labels + 1) % 3, dataset.labels)
    return np.full((len(dataset), 3), 0.1) + 0.7 * np.eye(3)[labels]


def test_saved_and_lost_are_separated():
    dataset = tiny_images()
    entries = saved_and_lost(
        predictions(dataset, [0, 1]), predictions(dataset, [1, 2]), dataset.labels, np.arange(3), dataset
    )
    assert [(e["kind"], e["id"]) for e in entries] == [("saved", dataset.ids[0]), ("lost", dataset.ids[2])]
    saved, lost = entries
    assert (saved["true"], saved["before"], saved["after"]) == (CLASSES[0], CLASSES[1], CLASSES[0])
    assert (saved["p_before"], saved["p_after"]) == (0.1, 0.8)
    assert (lost["p_before"], lost["p_after"]) == (0.8, 0.1)
    assert saved["image"].startswith("data:image/png;base64,")


def test_the_largest_changes_come_first():
    dataset = tiny_images()
    before, after = predictions(dataset, np.arange(10)), predictions(dataset, [])
    after[3] = [0.98, 0.01, 0.01]
    entries = saved_and_lost(before, after, dataset.labels, np.arange(3), dataset)
    assert len(entries) == 4
    assert entries[0]["id"] == dataset.ids[3]


def test_mistakes_are_the_most_probable_wrong_predictions():
    dataset = tiny_images()
    p = predictions(dataset, [1, 2])
    p[2] = [0.01, 0.98, 0.01]
    entries = saved_and_lost(p, p, dataset.labels, np.arange(3), dataset, mistakes=True)
    assert [(e["kind"], e["id"]) for e in entries] == [("wrong", dataset.ids[2]), ("wrong", dataset.ids[1])]
    assert entries[0]["p_predicted"] == 0.98


def test_a_class_that_no_source_has_is_never_right():
    dataset = tiny_images()
    p = np.tile([0.6, 0.4], (len(dataset), 1))
    assert not saved_and_lost(p, p, dataset.labels, np.array([0, 1]), dataset)


def test_large_pictures_become_small_and_texts_short(tmp_path):
    from sourceward.data import open_dataset

    root = image_folder(tmp_path / "images")
    Image.new("RGB", (300, 200)).save(root / "a" / "x" / "0.png")
    dataset = open_dataset(root)
    picture = show(dataset, dataset.ids.index("a/x/0.png"))["image"]
    kind, _, data = picture.partition(",")
    assert kind == "data:image/jpeg;base64"
    import base64

    assert max(Image.open(io.BytesIO(base64.b64decode(data))).size) == SIDE
    assert show(tiny_texts(), 0)["text"].startswith("fine a")
    assert show(tiny_features(), 0) == {}
