"""Downloads with short timeouts and one-sentence errors."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from sourceward._util.errors import InputError

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
