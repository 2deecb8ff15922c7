"""Sections of `bench speed`, and which of them are asked for."""

import torch

from sourceward._util.errors import InputError, unknown_name

GROUPS = {
    "prediction": ("chain", "axes", "predict", "memory", "agreement"),
    "training": ("feature_training", "image_training", "compiled_training"),
}
"""Every section, in order."""


def chosen(only: str, device: torch.device, image_size: int) -> tuple[str, ...]:
    """The sections asked for, by names of sections or groups and by comma; all when empty.

    Those that would take hours on a CPU are left out there.

    >>> chosen("memory,training", torch.device("cuda"), 224)
    ('memory', 'feature_training', 'image_training', 'compiled_training')
    """
    known = [name for group in GROUPS.values() for name in group]
    asked: list[str] = []
    for name in only.split(",") if only else GROUPS:
        if name not in known and name not in GROUPS:
            raise unknown_name("section", name, [*GROUPS, *known])
        asked += GROUPS.get(name, (name,))
    hours = set()
    if device.type != "cuda":
        hours = {"compiled_training"} if image_size < 224 else {"image_training", "compiled_training"}
    found = tuple(name for name in known if name in asked and name not in hours)
    if not found:
        raise InputError(f"Expected `--device cuda` for `--only {only}`: on a CPU it takes hours.")
    return found
