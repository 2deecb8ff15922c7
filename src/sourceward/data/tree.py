"""List the files of a folder or of a .tar, and read the tree <domain>/<class>/<file>."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sourceward._util.errors import InputError
from sourceward._util.reading import printable, regular_size
from sourceward.data.dataset import DomainDataset, Problem, build
from sourceward.data.stored import StoredFile, list_tar

IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2")
)
EXPECTED = "<root>/<domain>/<class>/<image>"


@dataclass(frozen=True)
class Tree:
    """The files under `root` by relative POSIX path, sorted, without hidden files."""

    root: Path
    files: dict[str, StoredFile]

    def under(self, prefix: str) -> "Tree":
        """Return the files below the folder `prefix`, by their path in it."""
        start = prefix.rstrip("/") + "/"
        return Tree(self.root, {p[len(start) :]: f for p, f in self.files.items() if p.startswith(start)})

    def images(self) -> dict[str, StoredFile]:
        return {path: file for path, file in self.files.items() if is_image(path)}

    def text(self, path: str) -> str:
        return self.files[path].read().decode("utf-8", errors="replace")


def is_image(path: str) -> bool:
    return path[path.rfind(".") :].lower() in IMAGE_SUFFIXES


def read_tree(path: str | Path) -> Tree:
    """List a folder or an uncompressed .tar without reading the files."""
    root = Path(path)
    if not os.path.exists(root):
        raise InputError(f"No such file or folder: '{path}'. Expected a folder {EXPECTED} or a .tar of one.")
    pairs = _walk_folder(root) if root.is_dir() else list_tar(root)
    files = {printable(name): file for name, file in pairs if not _hidden(name)}
    return Tree(root, {name: files[name] for name in sorted(files)})


def _hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _walk_folder(root: Path) -> Iterator[tuple[str, StoredFile]]:
    seen: set[str] = set()  # symbolic links are followed, each folder once
    stack = [(str(root), "")]
    while stack:
        folder, prefix = stack.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(folder) as entries:
            for entry in entries:
                if os.path.isdir(entry.path):  # not `entry.is_dir`, which fails on a loop of links
                    stack.append((entry.path, f"{prefix}{entry.name}/"))
                else:  # a broken link, a pipe or a device is listed as an empty file
                    yield prefix + entry.name, StoredFile(entry.path, regular_size(entry.path) or 0)


def read_domain_folders(path: str | Path) -> DomainDataset:
    """Read images in <domain>/<class>/... of a folder or .tar, also below a single top folder."""
    tree = skip_common_folders(read_tree(path), depth=3)
    images = tree.images()
    if not any(name.count("/") >= 2 for name in images):
        raise InputError(_not_a_tree(path, tree, images))
    return from_tree(tree, name=str(path))


def from_tree(
    tree: Tree, *, name: str, domains: dict[str, str] | None = None, classes: tuple[str, ...] | None = None
) -> DomainDataset:
    """Build the dataset of a tree <domain>/<class>/<image>; `domains` maps folders to domain names."""
    kept: list[str] = []
    problems: list[Problem] = []
    for path, file in tree.files.items():
        domain = path.split("/")[0]
        domain = domain if domains is None else domains.get(domain, domain)
        if path.count("/") < 2:
            if is_image(path):
                problems.append(Problem("misplaced", path, f"{path!r} is not in a class folder of a domain."))
        elif not is_image(path):
            problems.append(Problem("not_an_image", path, f"{path!r} is not named like an image.", domain))
        elif file.size == 0:
            problems.append(Problem("empty_file", path, f"{path!r} has no bytes.", domain))
        elif domains is not None and path.split("/")[0] not in domains:
            problems.append(Problem("unknown_domain", path, f"{path!r} is in no known domain."))
        else:
            kept.append(path)
    parts = [path.split("/", 2) for path in kept]
    present = [folder if domains is None else domains[folder] for folder, *_ in parts]
    return build(
        "image",
        tuple(tree.files[path] for path in kept),
        [folder for _, folder, _ in parts],
        present,
        ["/".join((domain, *rest)) for domain, (_, *rest) in zip(present, parts)],
        classes=classes,
        domain_names=None
        if domains is None
        else [d for d in dict.fromkeys(domains.values()) if d in set(present)],
        problems=problems,
        name=name,
    )


def skip_common_folders(tree: Tree, depth: int) -> Tree:
    """Drop top folders that hold every image, as long as images stay `depth` levels deep."""
    images = tree.images()
    while images and all(name.count("/") >= depth for name in images):
        first = {name.split("/")[0] for name in images}
        if len(first) > 1:
            break
        tree = tree.under(first.pop())
        images = tree.images()
    return tree


def _not_a_tree(path: str | Path, tree: Tree, images: dict[str, StoredFile]) -> str:
    direct = sum("/" not in name for name in images)
    if direct:
        found = f"found {direct:,} images directly under <root>"
    elif images:
        folders = {name.split("/")[0] for name in images}
        found = (
            f"found <root>/<folder>/<image> in {len(folders):,} folders; put those into one folder per domain"
        )
    elif tree.files:
        found = f"found {len(tree.files):,} files and no image"
    else:
        found = "found no files"
    return (
        f"'{path}' has no domain folders: expected {EXPECTED}, {found}. "
        f"`sourceward doctor {path}` shows what was found."
    )
