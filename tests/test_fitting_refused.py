"""Input that `fit` refuses, before anything is written."""

import pytest
import torch

from sourceward._util.errors import InputError
from sourceward.fitting import fit
from tests.tiny_runs import fit_tiny, image_folder, tiny_features, tiny_images

JOINT = {"recipe": "joint"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"backbone": "tiny:text"},
            "for the text backbone tiny:text, but the data holds image",
        ),
        ({"backbone": "timm:resnet81"}, "Did you mean"),
        ({"device": "cuda"}, "no CUDA device is available"),
        ({"target": "d"}, "Unknown domain 'd'"),
        ({"target": ("a", "b", "c")}, "no source domain"),
        ({"target": ("b", "c"), "settings": {"image_size": 16}}, "too small to corrupt"),
        ({"target": ("b", "c"), "settings": {**JOINT, "image_size": 16}}, "too small to corrupt"),
        ({"settings": {"shifts": "nose"}}, "`shifts` to be 'corruptions' or 'noise'"),
        ({"preset": "pacs-resnet"}, "Unknown preset 'pacs-resnet'. Did you mean"),
        ({"settings": {"max_itr": 3}}, "Unknown setting 'max_itr'. Did you mean 'max_iter'"),
        ({"settings": {"copy_scale": 0}}, "`copy_scale` to be above 0 and at most 1, but got 0"),
        ({"settings": {"num_steps": -3}}, "Use 0 to predict without adaptation"),
        ({"settings": {"max_iter": "many"}}, "Expected setting `max_iter` to be int, but got 'many'"),
        ({"settings": {"recipe": "three"}}, "`recipe` to be 'two-stage' or 'joint'"),
        ({"settings": {"backbone_learning_rate": 1e-4}}, r"set `finetune\.backbone_learning_rate`"),
        ({"settings": {"freeze_batchnorm": False}}, r"set `finetune\.freeze_batchnorm`"),
        ({"settings": JOINT, "freeze": True}, "`recipe` has no effect on a frozen backbone"),
        ({"settings": {"finetune.max_iter": 9}, "freeze": True}, "`finetune.max_iter` has no effect"),
        ({"settings": {"fourier_copies": False}}, "`fourier_copies` needs a frozen backbone"),
        ({"settings": {**JOINT, "crossfit": 0.5}}, "`crossfit` has no effect with `recipe=joint`"),
        ({"settings": {**JOINT, "num_steps": "auto"}}, "'joint' has no leave-one-domain-out validation"),
        ({"settings": {"crossfit": 1.5}}, "`crossfit` to be from 0 to 1"),
        ({"settings": {"tta": "hflop"}}, "Unknown transform 'hflop'. Did you mean 'hflip'"),
        ({"settings": {"tta": "adain"}, "freeze": True}, "`tta=adain` needs a trained backbone"),
        ({"settings": {"train.chains": 0}}, "`chains` to be 1 or more"),
        ({"settings": {"views": "flip"}}, "Unknown setting 'views'"),
        ({"settings": {"finetune.method": "emr"}}, "Did you mean 'erm'"),
        ({"settings": {"finetune.max_iter": 0}}, "`finetune.max_iter` to be 1 or more"),
        ({"settings": {"finetune.average": 1.5}}, "`finetune.average` to be from 0 to 1"),
        ({"settings": {"heads_device": "moon"}}, "moon"),
        ({"settings": {"image_size": -5}}, "`image_size` to be 1 or more, but got -5"),
        ({"settings": {"image_size": 0}}, "`image_size` to be 1 or more, but got 0"),
        ({"settings": {"max_length": 0}}, "`max_length` to be 1 or more, but got 0"),
        ({"seed": -1}, "`seed` to be 0 or more"),
        ({"seed": 2**32}, "`seed` to be 0 or more and below"),
        ({"settings": {"heads_device": "cpu", "recipe": "joint"}}, "`heads_device` belongs to"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for CUDA where there is none")
def test_bad_input_is_refused_before_anything_is_written(options, message, tmp_path):
    wanted = {"target": "c", "backbone": "tiny:conv", "weights": None, "device": "cpu", **options}
    with pytest.raises(InputError, match=message):
        fit(tiny_images(), out=tmp_path / "run", **wanted)
    assert not (tmp_path / "run").exists()


def test_a_domain_with_one_class_and_a_broken_image(tmp_path):
    root = image_folder(tmp_path / "images")
    (root / "a/x/0.png").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be read"):
        fit_tiny(root, tmp_path / "run", backbone="tiny:conv", weights=None)
    (root / "a/x/0.png").write_bytes((root / "a/x/1.png").read_bytes()[:60])
    with pytest.raises(InputError, match="truncated"):
        fit_tiny(root, tmp_path / "run", backbone="tiny:conv", weights=None)
    for label in ("y", "z"):
        for file in (root / "a" / label).iterdir():
            file.unlink()
    with pytest.raises(InputError, match="Domain 'a' has no images of class 'y'"):
        fit_tiny(root, tmp_path / "run")


def test_fewer_than_three_sources_are_warned_about(tmp_path):
    said = "needs 3 source domains, but there are 2: .*expected accuracy on an unseen domain.* Leave fewer"
    with pytest.warns(UserWarning, match=said):
        fit_tiny(tiny_features(), tmp_path / "run", settings={"num_steps": "auto"})
