"""Read a request: files of images, or JSON with features or texts, each sample by itself."""

import json
from typing import Any, NamedTuple

import numpy as np
import torch

from sourceward.data.decode import decode_image, open_image, reason_of
from sourceward.data.loading import image_geometry
from sourceward.deploy.server_guard import Refused
from sourceward.deploy.server_settings import Limits
from sourceward.model import Model
from sourceward.model.inputs import Failure

FIELD = {"image": "files", "text": "texts", "features": "features"}
"""Where a request has its samples: files of a form, or a key of a JSON object."""

LONGEST_TEXT = 100_000
"""Characters; tokenizers cut far below that."""


class Sample(NamedTuple):
    name: str
    value: Any
    """A uint8 image (3, height, width), a text, a feature vector, or a `Failure`."""


def read_image(name: str, data: bytes, model: Model, limits: Limits) -> Sample:
    """Decode one uploaded file."""
    if not data:
        return Sample(name, Failure(name, "the file is empty"))
    try:
        with open_image(data) as image:
            pixels = image.width * image.height
        if pixels > limits.pixels:
            reason = f"the image has {pixels:,} pixels, and the limit is {limits.pixels:,}"
            return Sample(name, Failure(name, reason))
        return Sample(name, torch.from_numpy(decode_image(data, image_geometry(model.preprocessing))))
    except Exception as error:  # every format of PIL has its own exceptions for broken files
        return Sample(name, Failure(name, reason_of(error)))


def read_json(body: bytes, model: Model, limits: Limits) -> list[Sample]:
    """The samples of a JSON body: {"texts": [...]} or {"features": [[...], ...]}; a single one is no list."""
    field = FIELD[model.kind]
    if model.kind == "image":
        raise Refused(415, "This model reads images: send files of a multipart form in the field `files`.")
    try:
        content = json.loads(body)
        given = content[field]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(400, f"Expected a JSON object with the key {field!r}.") from None
    if isinstance(given, str) or _is_vector(given):
        given = [given]
    if not isinstance(given, list) or not given:
        raise Refused(400, f"Expected a list of one sample or more in {field!r}.")
    check_count(len(given), limits)
    read = _text if model.kind == "text" else _features
    return [read(str(number), value, model) for number, value in enumerate(given)]


def check_count(count: int, limits: Limits) -> None:
    """Refuse too many samples."""
    if count > limits.samples:
        raise Refused(413, f"Expected at most {limits.samples} samples in a request, but got {count}.")


def _is_vector(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], int | float)


def _text(name: str, value: Any, _: Model) -> Sample:
    if not isinstance(value, str) or not value.strip():
        return Sample(name, Failure(name, "expected a text that is not empty"))
    try:
        value.encode()
    except UnicodeEncodeError:
        return Sample(name, Failure(name, "the text is not valid Unicode"))
    return Sample(name, value[:LONGEST_TEXT])


def _features(name: str, value: Any, model: Model) -> Sample:
    width = model.adapter.n_features_in_
    try:
        row = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        return Sample(name, Failure(name, "expected a list of numbers"))
    if row.shape != (width,):
        return Sample(name, Failure(name, f"expected {width} numbers, but got shape {row.shape}"))
    if not np.isfinite(row).all():
        return Sample(name, Failure(name, "NaN or infinity"))
    return Sample(name, row)
