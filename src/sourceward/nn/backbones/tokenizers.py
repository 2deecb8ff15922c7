"""Tokenizers: one that hashes words and needs no files, and those of Hugging Face."""

import re
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor

from sourceward._util.errors import InputError
from sourceward.nn.backbones.weights import import_transformers

FOLDER = "tokenizer"
"""The subfolder of an assets folder in which `save` writes."""


class Tokenizer(Protocol):
    def __call__(self, texts: list[str], max_length: int) -> dict[str, Tensor]: ...

    def save(self, folder: Path) -> None: ...


class HashTokenizer:
    """Lower-case words and signs, each hashed to one of `buckets` ids; id 0 is padding.

    >>> HashTokenizer(10)(["Good day", "no"], max_length=8)["attention_mask"].tolist()
    [[1, 1], [1, 0]]
    """

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets

    def __call__(self, texts: list[str], max_length: int) -> dict[str, Tensor]:
        words = [re.findall(r"\w+|[^\w\s]", text.lower())[:max_length] for text in texts]
        ids = torch.zeros(len(texts), max(1, *map(len, words)), dtype=torch.long)
        for row, line in zip(ids, words):
            row[: len(line)] = torch.tensor([1 + crc32(word.encode()) % (self.buckets - 1) for word in line])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    def save(self, folder: Path) -> None:
        """Write nothing: the number of buckets is part of the architecture."""


class HfTokenizer:
    """A Hugging Face tokenizer that pads to the longest text of the batch, on the right."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        tokenizer.padding_side = "right"  # CLS pooling reads position 0
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token

    @classmethod
    def load(cls, location: str | Path, *, local_files_only: bool = True) -> "HfTokenizer":
        auto = import_transformers().AutoTokenizer
        tokenizer = auto.from_pretrained(
            str(location), local_files_only=local_files_only, trust_remote_code=False
        )
        if len(tokenizer) <= len(tokenizer.all_special_ids):  # without its files every word is unknown
            raise InputError(
                f"The tokenizer of {str(location)!r} has no vocabulary: expected its files (tokenizer.json, "
                "or vocab.txt) beside config.json. Copy them there."
            )
        return cls(tokenizer)

    def __call__(self, texts: list[str], max_length: int) -> dict[str, Tensor]:
        return dict(
            self.tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
        )

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder / FOLDER)
