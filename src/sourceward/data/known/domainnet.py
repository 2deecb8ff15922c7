"""DomainNet: six domains, 345 classes, and the authors' list files."""

from pathlib import Path

from sourceward.data.dataset import DomainDataset
from sourceward.data.known.entry import known_dataset
from sourceward.data.known.image_folders import Aliases, locate_domains, read_domains
from sourceward.data.known.lists import Suffixes, apply_lists, find_lists
from sourceward.data.tree import read_tree

DOMAINS: Aliases = dict.fromkeys(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), ())
LISTS: Suffixes = {
    "train": ("_train.txt",),
    "val": ("_test.txt",),
}  # the owners' test images serve to select on


@known_dataset(
    "domainnet",
    about="Clip art, infographics, paintings, quick drawings, photos and sketches: 586,575 images, 6 "
    "domains, 345 classes (Peng et al. 2019).",
    where="The project page https://ai.bu.edu/M3SDA/ (the cleaned version of clipart and painting).",
    layout="<root>/<domain>/<class>/<image>, and the lists <domain>_train.txt and <domain>_test.txt in "
    "<root>, in <root>/splits or in `splits` beside it: lines `<domain>/<class>/<image> <label>`.",
)
def read_domainnet(path: str | Path, *, splits: str | Path | None = None) -> DomainDataset:
    whole = read_tree(path)
    tree, folders = locate_domains(whole, DOMAINS, "domainnet")
    dataset = read_domains(tree, folders, DOMAINS, name=str(path), num_classes=345)
    return apply_lists(dataset, find_lists(whole, {d: d for d in DOMAINS}, LISTS, splits))
