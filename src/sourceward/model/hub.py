"""Model folders on the Hugging Face Hub."""

from functools import cache
from pathlib import Path
from typing import Any

from sourceward._util.errors import InputError
from sourceward._util.storage import write_whole

SPACE = Path(__file__).with_name("space.py")
"""The Gradio app of a Space."""


@cache
def hub_class() -> Any:
    """Return a `ModelHubMixin` around `Model`. Built when needed: huggingface_hub is an optional package."""
    try:
        from huggingface_hub import ModelHubMixin, snapshot_download
    except ImportError:
        raise InputError(
            "The Hub needs huggingface_hub: pip install 'sourceward[train]'. `sw.load` reads local folders "
            "without it."
        ) from None
    from sourceward.model.file import WEIGHTS
    from sourceward.model.model import Model

    class HubModel(ModelHubMixin, library_name="sourceward"):
        def __init__(self, model: Model) -> None:
            self.model = model

        def _save_pretrained(self, save_directory: Path) -> None:
            self.model.save(save_directory)
            write_whole(save_directory / "app.py", SPACE.read_text(encoding="utf-8"))

        @classmethod
        def _from_pretrained(
            cls,
            *,
            model_id: str,
            revision: str | None = None,
            cache_dir: str | Path | None = None,
            force_download: bool = False,
            local_files_only: bool = False,
            token: str | bool | None = None,
            device: str = "auto",
            weights: str = WEIGHTS,
            module: Any = None,
            **_: Any,
        ) -> "HubModel":
            if Path(model_id).is_dir():
                return cls(Model.load(model_id, device, weights=weights, module=module))
            folder = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
            return cls(Model.load(folder, device, weights=weights, module=module))

    return HubModel
