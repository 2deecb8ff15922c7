"""Weights: download them with short timeouts, and load them into a network or say why they do not fit."""

import os
import socket
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from torch import Tensor, nn

from sourceward._util.errors import InputError
from sourceward._util.reading import regular_size

CLASSIFIER_LAYERS = (
    "fc",
    "classifier",
    "head",
    "heads",
    "head_dist",
    "last_linear",
    "AuxLogits",
    "aux1",
    "aux2",
)
"""Names of classifier layers in vision libraries."""
TEXT_LAYERS = ("cls", "lm_head", "pooler", "pre_classifier", "qa_outputs", "score", "vocab_transform",
              "vocab_layer_norm", "vocab_projector")  # fmt: skip
BUFFERS = ("num_batches_tracked", "position_ids", "relative_position_index", "attn_mask")
"""Counters and constants that files may lack without a change of the outputs."""

Weights = str | Path | Mapping[str, Tensor]

OTHERWISE = "pass a file as `weights` (--weights FILE), or none to start at random (--weights none)."
"""Advice when a library has no weights."""


def is_default(weights: Weights | None) -> bool:
    return isinstance(weights, str) and weights == "default"


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read tensors by name from a .safetensors file, or from a state dict that holds only tensors."""
    path = Path(path)
    if os.path.isdir(path):
        path = path / "model.safetensors"
    if regular_size(path) is None:
        raise InputError(
            f"Expected `weights` to be 'default', none or a file, but there is no file {str(path)!r}."
        )
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd pickle
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle makes its reader raise whatever it runs into
        detail = (str(error).strip() or "empty file").splitlines()[0]
        if "weights_only" in detail:  # torch advises to run the code in the file
            detail = "it is damaged, or holds more than tensors"
        raise InputError(
            f"Could not read weights from {str(path)!r}: expected a complete .safetensors file or a state "
            f"dict of tensors only ({detail}). Copy it again, or save it with safetensors."
        ) from error
    for key in ("state_dict", "model"):  # what training scripts wrap around it
        loaded = (
            loaded[key] if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping) else loaded
        )
    if not isinstance(loaded, Mapping) or not any(isinstance(v, Tensor) for v in loaded.values()):
        raise InputError(f"Expected tensors by name in {str(path)!r}, but got {type(loaded).__name__}.")
    return {str(key): value for key, value in loaded.items() if isinstance(value, Tensor)}


def load_weights(network: nn.Module, weights: Weights, *, label: str) -> None:
    """Copy `weights` into `network`, without their common key prefix and in float32.

    Classifier heads in the file are ignored; any other difference is one InputError.
    """
    given = dict(weights) if isinstance(weights, Mapping) else read_weights(weights)
    wanted = network.state_dict()
    prefix = common_prefix(given, wanted)
    # Keys without the prefix belong to other parts of a larger model.
    found = {k.removeprefix(prefix): _full_precision(k, v) for k, v in given.items() if k.startswith(prefix)}

    missing = [key for key in wanted if key not in found and not key.endswith(BUFFERS)]
    extra = [key for key in found if key not in wanted and not _ignored(key)]
    both = [key for key in wanted if key in found]
    shapes = [
        f"{key} {tuple(found[key].shape)} for {tuple(wanted[key].shape)}"
        for key in both
        if found[key].shape != wanted[key].shape
    ]
    if missing or extra or shapes:
        source = "The given weights" if isinstance(weights, Mapping) else f"The weights in {str(weights)!r}"
        parts = [_count(missing, "missing"), _count(extra, "unexpected"), _count(shapes, "of another shape")]
        raise InputError(
            f"{source} do not fit {label}: of {len(wanted)} tensors expected, "
            f"{', '.join(part for part in parts if part)}. Is it the file of another backbone?"
        )
    network.load_state_dict({key: found[key] for key in both}, strict=False)


def common_prefix(given: Iterable[str], wanted: Iterable[str]) -> str:
    """Return the prefix (`module.`, `backbone.`, `bert.`, ...) with which most names match.

    >>> common_prefix(["module.fc.weight", "module.conv.weight", "step"], ["conv.weight"])
    'module.'
    """
    names = set(wanted)
    matches: Counter[str] = Counter()
    for key in given:
        parts = key.split(".")
        cuts = (".".join(parts[i:]) for i in range(len(parts)))
        matches.update(key[: len(key) - len(cut)] for cut in cuts if cut in names)
    return max(matches, key=lambda prefix: (matches[prefix], -len(prefix)), default="")


def _ignored(key: str) -> bool:
    return key.split(".")[0] in CLASSIFIER_LAYERS + TEXT_LAYERS or key.endswith(BUFFERS)


def _full_precision(name: str, value: Tensor) -> Tensor:
    try:
        if value.layout == torch.strided and not (value.is_complex() or value.is_quantized or value.is_meta):
            return value.float() if value.is_floating_point() else value
    except RuntimeError:  # a type that torch stores and does not compute with, as float4
        pass
    raise InputError(f"Expected weights that are dense real numbers, but {name} is {_kind(value)}.")


def _kind(value: Tensor) -> str:
    """The type and layout of a tensor.

    >>> _kind(torch.zeros(1, dtype=torch.complex64))
    'of type complex64 (strided)'
    """
    return f"of type {value.dtype} ({value.layout})".replace("torch.", "")


def _count(keys: list[str], what: str) -> str:
    if not keys:
        return ""
    return f"{len(keys)} {what} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})"


TIMEOUT = 5.0
"""Seconds to wait for a connection."""


def import_transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise InputError(
            "Hugging Face models need the package transformers, which is not installed. "
            "Run `pip install sourceward[text]`."
        ) from error


@contextmanager
def quiet(bars: bool) -> Iterator[None]:
    """Silence the reports of transformers and, with `bars`, its progress bars."""
    logging = import_transformers().utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def reachable(url: str) -> bool:
    """Return whether the host answers; libraries retry for half a minute before they give up."""
    if getproxies():
        return True
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), timeout=TIMEOUT).close()
    except OSError:
        return False
    return True


def hub_offline() -> bool:
    """Return whether only the local Hugging Face cache can be used."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE) or not reachable(constants.ENDPOINT)


@contextmanager
def no_hub() -> Iterator[None]:
    """Within this context, Hugging Face libraries read local files only."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_file(repo: str, names: tuple[str, ...], *, local_files_only: bool) -> str | None:
    """Return the first of `names` in a Hub repository, from the cache if possible."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for offline in (True,) if local_files_only or hub_offline() else (True, False):
        for name in names:
            try:
                return str(hf_hub_download(repo, name, local_files_only=offline, etag_timeout=TIMEOUT))
            except (EntryNotFoundError, LocalEntryNotFoundError):
                continue
    return None


@contextmanager
def url_cache(url: str, *, local_files_only: bool) -> Iterator[None]:
    """Guard a `torch.hub` download: fail early when offline, and set a timeout."""
    from torch.hub import get_dir

    cached = os.path.exists(os.path.join(get_dir(), "checkpoints", os.path.basename(urlsplit(url).path)))
    if not cached and (local_files_only or not reachable(url)):
        raise OSError(f"{url} is not in the cache and cannot be reached")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT * 4)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def no_download(what: str, remedy: str, error: Exception | None = None) -> InputError:
    detail = f" ({first_line(error).rstrip('.')})" if error else ""
    return InputError(f"Could not download {what}{detail}. {remedy}")


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
