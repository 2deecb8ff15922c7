"""What a fine-tuning method needs, and why it refuses data that lacks it."""

from dataclasses import dataclass, field
from typing import Any

from sourceward._util.errors import InputError


@dataclass(frozen=True)
class Needs:
    """What a method needs of data and settings, and what it adds to the training.

    Args:
        images: it changes pixels or feature maps.
        sources: least number of source domains.
        backbone: what the backbone must have; the method's constructor refuses one without it.
        networks: what it trains beside backbone and head.
        adapter: the test-time adapter that uses what it trains.
        settings: settings of `fit` without which it is another method.
    """

    images: bool = False
    sources: int = 1
    backbone: str = ""
    networks: str = ""
    adapter: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def check(self, name: str, kind: str, sources: int, settings: Any = None) -> None:
        """Refuse data that a method cannot use, before any training.

        Args:
            name: of the method.
            kind: `image` or `text`.
            sources: source domains that are trained on.
            settings: of fine-tuning; None where they are not known yet.

        >>> Needs(sources=2).check("masf", "text", 3)
        """
        if self.images and kind != "image":
            raise InputError(f"Fine-tuning by {name!r} needs images, but the data holds texts. Use 'erm'.")
        if sources < self.sources:
            raise InputError(
                f"Fine-tuning by {name!r} needs {self.sources} or more source domains, but got {sources}. "
                "Use 'erm', or add a domain."
            )
        for key, value in self.settings.items() if settings is not None else ():
            if getattr(settings, key.removeprefix("finetune.")) != value:
                wanted = f"{key}={str(value).lower()}"
                raise InputError(f"Fine-tuning by {name!r} needs `{wanted}`. Add --set {wanted}.")
