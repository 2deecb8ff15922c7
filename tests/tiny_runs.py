"""Datasets and trainings of seconds, real in every other respect."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file

from sourceward._util.storage import tensor_hash
from sourceward.data import DomainDataset
from sourceward.data.dataset import build
from sourceward.fitting import fit
from sourceward.model import Model
from sourceward.training.trainer import Trainer

TINY = {
    "max_iter": 12,
    "batch_size": 6,
    "train.num_steps": 2,
    "num_steps": 2,
    "train.chains": 4,
}
OFTEN = {"checkpoint_every": 5, "evaluate_every": 6}
FINETUNE = {f"finetune.{name}": value for name, value in {"max_iter": 12, "batch_size": 6, **OFTEN}.items()}
DOMAINS, CLASSES, EACH = ("a", "b", "c"), ("x", "y", "z"), 6


def pixels(domain: int, label: int, rng: np.random.Generator) -> np.ndarray:
    """Noise with a band whose height is the class and whose colour is the domain: (16, 16, 3)."""
    image = rng.integers(0, 80, (16, 16, 3), dtype=np.uint8)
    image[4 * label + 2 : 4 * label + 6, :, domain] += 150
    return image


def tiny_images() -> DomainDataset:
    """Three domains, three classes, in memory."""
    rng = np.random.default_rng(0)
    cells = [(d, c) for d in range(3) for c in range(3) for _ in range(EACH)]
    items = np.stack([pixels(d, c, rng).transpose(2, 0, 1) for d, c in cells])
    return build(
        "image",
        items,
        [CLASSES[c] for _, c in cells],
        [DOMAINS[d] for d, _ in cells],
        [f"{DOMAINS[d]}/{CLASSES[c]}/{i}" for i, (d, c) in enumerate(cells)],
        name="tiny",
    )


def four_domains() -> DomainDataset:
    """The same images in four domains: three sources and the target `d`."""
    return replace(tiny_images(), domains=np.arange(54) % 4, domain_names=("a", "b", "c", "d"))


def four_features() -> DomainDataset:
    """Features in four domains: three sources and the target `d`."""
    data = four_domains()
    shift = np.array([0.0, 1.0, -1.0, 2.0], dtype=np.float32)[data.domains]
    return replace(
        tiny_features(),
        items=tiny_features().items + shift[:, None],
        domains=data.domains,
        domain_names=data.domain_names,
    )


def image_folder(root: Path) -> Path:
    """The same kind of images as files, <root>/<domain>/<class>/<n>.png."""
    rng = np.random.default_rng(0)
    for d, domain in enumerate(DOMAINS):
        for c, label in enumerate(CLASSES):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for number in range(EACH):
                Image.fromarray(pixels(d, c, rng)).save(folder / f"{number}.png")
    return root


def tiny_texts() -> DomainDataset:
    """Two sources and a target of texts with telling words."""
    words = {"good": "fine great lovely", "bad": "awful poor sad"}
    rows = [(d, c, n) for d in DOMAINS for c in words for n in range(EACH)]
    texts = tuple(f"{words[c].split()[n % 3]} {d} {'very ' * n}" for d, c, n in rows)
    ids = [f"{d}/{c}/{n}" for d, c, n in rows]
    return build("text", texts, [c for _, c, _ in rows], [d for d, _, _ in rows], ids, name="texts")


def text_table(path: Path) -> Path:
    """The same texts in a table none of whose columns has a usual name."""
    data, lines = tiny_texts(), ["hall;mood;2019"]
    for text, label, domain in zip(data.items, data.labels, data.domains):
        lines.append(f"{data.domain_names[domain]};{data.classes[label]};{text}")
    path.write_text("\n".join(lines) + "\n")
    return path


NAMED = ("domain=hall", "label=mood", "text=2019", "delimiter=;")
"""How `--option` names what is in `text_table`."""


def tiny_features(seed: int = 0) -> DomainDataset:
    rng = np.random.default_rng(seed)
    data = tiny_images()
    items = rng.normal(size=(len(data), 5)) + 2 * data.labels[:, None] + data.domains[:, None]
    names = [data.domain_names[d] for d in data.domains]
    labels = [data.classes[c] for c in data.labels]
    return build("features", items.astype(np.float32), labels, names, data.ids, name="features")


def fit_tiny(data: object, out: Path, **options: object) -> Model:
    """`fit` with settings of seconds; images go through the tiny convolutional backbone."""
    kind = getattr(data, "kind", "image")
    given: dict = options.pop("settings", {})  # type: ignore[assignment]
    trains = kind != "features" and not options.get("freeze")
    often = (OFTEN if given.get("recipe") == "joint" else FINETUNE) if trains else {}
    if kind != "features":
        options = {"backbone": "tiny:conv" if kind == "image" else "tiny:text", "weights": None, **options}
    size = {"image_size": 16} if kind == "image" else {}
    settings = {**TINY, **size, **often, **given}
    options.setdefault("target", "c")
    return fit(data, out=out, settings=settings, device="cpu", **options)  # type: ignore[arg-type]


def weights_of(folder):
    return tensor_hash(load_file(folder / "model.safetensors"))


def kill_after(monkeypatch, count, *learners):
    """All trainings together stop as if killed after so many steps."""
    taken = []

    def watched(step):
        def killed(self, feed):
            if len(taken) == count:
                raise KeyboardInterrupt
            taken.append(self)
            return step(self, feed)

        return killed

    for learner in learners:
        monkeypatch.setattr(learner, "step", watched(learner.step))


def kill_at(monkeypatch, iteration, learner=Trainer):
    """The next training stops as if killed, right before that iteration."""
    step = learner.step

    def killed(self, feed):
        if self.iteration == iteration:
            raise KeyboardInterrupt
        return step(self, feed)

    monkeypatch.setattr(learner, "step", killed)
