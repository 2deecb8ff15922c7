"""Benchmarks that are trees of image folders: PACS, Office-Home, VLCS, TerraIncognita, DomainNet."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset, Problem
from sourceward.data.known.entry import known_dataset
from sourceward.data.known.lists import Suffixes, apply_lists, find_lists
from sourceward.data.tree import StoredFile, Tree, from_tree, read_tree

# Domain name -> other folder names in use, compared as `plain` writes them.
Aliases = dict[str, tuple[str, ...]]

PACS: Aliases = {"photo": (), "art_painting": ("artpainting", "art"), "cartoon": (), "sketch": ()}
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
PACS_LISTS: Suffixes = {
    "train": ("_train.txt", "_train_kfold.txt"),
    "val": ("_val.txt", "_crossval_kfold.txt", "_val_kfold.txt"),
}
OFFICE_HOME: Aliases = {"art": (), "clipart": (), "product": (), "real_world": ("realworld", "real")}
TERRA: Aliases = {f"location_{n}": (f"l{n}", f"location{n}") for n in (38, 43, 46, 100)}
VLCS: Aliases = {
    "caltech101": ("caltech",),
    "labelme": (),
    "voc2007": ("pascal", "pascal_voc", "voc"),
    "sun09": ("sun",),
}
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
DOMAINNET: Aliases = dict.fromkeys(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), ())
# The published test images validate.
DOMAINNET_LISTS: Suffixes = {"train": ("_train.txt",), "val": ("_test.txt",)}


def _reader(
    name: str,
    aliases: Aliases,
    *,
    classes: tuple[str, ...] | None = None,
    num_classes: int | None = None,
    lists: Suffixes | None = None,
) -> Callable[..., DomainDataset]:
    """Return a reader of <domain>/<class>/<image>; with `lists`, of official split lists as well."""

    def read(path: str | Path) -> DomainDataset:
        return read_tree_of(path)[0]

    def read_with_lists(path: str | Path, *, splits: str | Path | None = None) -> DomainDataset:
        dataset, whole = read_tree_of(path)
        return apply_lists(dataset, find_lists(whole, _folder_names(aliases), lists or {}, splits))

    def read_tree_of(path: str | Path) -> tuple[DomainDataset, Tree]:
        whole = read_tree(path)
        tree, folders = locate_domains(whole, aliases, name)
        options: Any = {"classes": classes, "num_classes": num_classes}
        return read_domains(tree, folders, aliases, name=str(path), **options), whole

    return read if lists is None else read_with_lists


known_dataset(
    "pacs",
    about="Photos, art paintings, cartoons and sketches: 9,991 images, 7 classes (Li et al. 2017).",
    where="The SketchX project page, https://sketchx.eecs.qmul.ac.uk/ , or DomainBed's download script.",
    layout="<root>/[kfold/]<photo|art_painting|cartoon|sketch>/<class>/<image>, a folder or a .tar; the "
    "official lists <domain>_train.txt and <domain>_val.txt (or _train_kfold, _crossval_kfold) in `splits`.",
)(_reader("pacs", PACS, classes=PACS_CLASSES, lists=PACS_LISTS))

known_dataset(
    "office_home",
    about="Everyday objects in art, clip art, product and real-world photos: 15,500 images, 4 domains, "
    "65 classes (Venkateswara et al. 2017).",
    where="The project page https://www.hemanthdv.org/officeHomeDataset.html",
    layout="<root>/<Art|Clipart|Product|Real World>/<class>/<image>, a folder or a .tar.",
)(_reader("office_home", OFFICE_HOME, num_classes=65))

known_dataset(
    "terra_incognita",
    about="Camera traps at four locations, DomainBed's subset: 24,788 images, 10 classes "
    "(Beery et al. 2018).",
    where="https://lila.science/datasets/caltech-camera-traps ; DomainBed's download script cuts the subset.",
    layout="<root>/<location_38|location_43|location_46|location_100>/<class>/<image>, a folder or a .tar.",
)(_reader("terra_incognita", TERRA, num_classes=10))

known_dataset(
    "domainnet",
    about="Clip art, infographics, paintings, quick drawings, photos and sketches: 586,575 images, 6 "
    "domains, 345 classes (Peng et al. 2019).",
    where="The project page https://ai.bu.edu/M3SDA/ (the cleaned version of clipart and painting).",
    layout="<root>/<domain>/<class>/<image>, and the lists <domain>_train.txt and <domain>_test.txt in "
    "<root>, in <root>/splits or in `splits` beside it: lines `<domain>/<class>/<image> <label>`.",
)(_reader("domainnet", DOMAINNET, num_classes=345, lists=DOMAINNET_LISTS))


@known_dataset(
    "vlcs",
    about="Caltech101, LabelMe, VOC2007 and SUN09: 10,729 images, 4 domains, 5 classes (Fang et al. 2013).",
    where="DomainBed's download script, https://github.com/facebookresearch/DomainBed",
    layout="<root>/<Caltech101|LabelMe|VOC2007|SUN09>/<class>/<image>, or the older "
    "<root>/<CALTECH|LABELME|PASCAL|SUN>/<train|crossval|test>/<0..4>/<image>; a folder or a .tar.",
)
def read_vlcs(path: str | Path) -> DomainDataset:
    tree, folders = locate_domains(read_tree(path), VLCS, "vlcs")
    files, held, copies = _flatten_vlcs(tree)
    dataset = read_domains(Tree(tree.root, files), folders, VLCS, name=str(path), classes=VLCS_CLASSES)
    split = np.array(["val" if item in held else "train" for item in dataset.items]) if held else None
    by = "by its folders `crossval` and `test`"
    return replace(dataset, split=split, split_by=by, problems=dataset.problems + copies)


def _flatten_vlcs(tree: Tree) -> tuple[dict[str, StoredFile], set[StoredFile], tuple[Problem, ...]]:
    """Map the older layout to <domain>/<class>/<part>_<image>; return files, validation files, copies."""
    files: dict[str, StoredFile] = {}
    held: set[StoredFile] = set()
    copies = []
    for path, file in tree.files.items():
        parts = path.split("/")
        if len(parts) < 4 or parts[1] not in ("train", "crossval", "test", "full"):
            files[path] = file
        elif parts[1] == "full":
            copies.append(Problem("copy", path, f"{path!r} repeats an image of another part; not used."))
        else:
            name = VLCS_CLASSES[int(parts[2])] if parts[2] in "01234" else parts[2]
            files[f"{parts[0]}/{name}/{parts[1]}_{parts[-1]}"] = file
            if parts[1] != "train":
                held.add(file)
    return files, held, tuple(copies)


def plain(folder: str) -> str:
    """Return a folder name in lower case with underscores.

    >>> plain("Real World"), plain("ART-painting")
    ('real_world', 'art_painting')
    """
    return folder.lower().replace(" ", "_").replace("-", "_")


def locate_domains(tree: Tree, aliases: Aliases, dataset: str) -> tuple[Tree, dict[str, str]]:
    """Find the subtree with the most domain folders side by side; return it and {folder: domain}."""
    known = _folder_names(aliases)
    places: dict[str, dict[str, str]] = {}
    for folder in {path.rsplit("/", 1)[0] for path in tree.images() if "/" in path}:
        parts = folder.split("/")
        for depth, part in enumerate(parts):
            if plain(part) in known:
                places.setdefault("/".join(parts[:depth]), {})[part] = known[plain(part)]
    if not places:
        top = sorted({path.split("/")[0] for path in tree.files})[:8]
        raise InputError(
            f"'{tree.root}' holds none of the domains of {dataset}: expected folders {', '.join(aliases)}, "
            f"found {', '.join(top) or 'nothing'}. `sourceward list datasets` shows the layout."
        )
    prefix = max(sorted(places), key=lambda place: (len(set(places[place].values())), -place.count("/")))
    return (tree.under(prefix) if prefix else tree), places[prefix]


def read_domains(
    tree: Tree,
    folders: dict[str, str],
    aliases: Aliases,
    *,
    name: str,
    classes: tuple[str, ...] | None = None,
    num_classes: int | None = None,
) -> DomainDataset:
    """Read the domains in the order of `aliases`, and report absent domains and classes."""
    ordered = {folder: domain for domain in aliases for folder, found in folders.items() if found == domain}
    dataset = from_tree(tree, name=name, domains=ordered, classes=classes)
    problems = [
        Problem("missing_domain", domain, f"'{name}' has no folder for domain {domain!r}.")
        for domain in aliases
        if domain not in dataset.domain_names
    ]
    if num_classes is not None and len(dataset.classes) != num_classes:
        message = f"Expected {num_classes} classes, found {len(dataset.classes)}."
        problems.append(Problem("class_count", name, message))
    return replace(dataset, problems=dataset.problems + tuple(problems))


def _folder_names(aliases: Aliases) -> dict[str, str]:
    """Map every name in use to its domain."""
    return {name: domain for domain, others in aliases.items() for name in (domain, *others)}
