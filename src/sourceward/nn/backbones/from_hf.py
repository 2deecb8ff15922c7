"""`hf:NAME` or a folder: text and image models of transformers, with one feature vector per input."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn

from sourceward._util.errors import InputError
from sourceward._util.reading import regular_size
from sourceward._util.values import damaged, read_json
from sourceward.nn.backbones.backbone import BuildOptions, Parts
from sourceward.nn.backbones.preprocessing import ImagePreprocessing, TextPreprocessing
from sourceward.nn.backbones.tokenizers import HfTokenizer
from sourceward.nn.backbones.weights import (
    first_line,
    hub_file,
    hub_offline,
    import_transformers,
    no_download,
    quiet,
)

EXAMPLES = [
    "distilbert-base-uncased",
    "bert-base-uncased",
    "sentence-transformers/all-MiniLM-L6-v2",
    "google/vit-base-patch16-224",
    "facebook/dinov2-small",
    "openai/clip-vit-base-patch32",
]
POOLINGS = ("cls", "mean", "pooler")
CLS_TEXT = ("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
            "mpnet", "roberta", "xlm-roberta")  # fmt: skip
CLS_IMAGE = ("vit", "deit", "vit_msn", "dinov2", "dinov2_with_registers", "dinov3_vit")
"""Image models whose normalized first token is the feature; checkpoints often lack their pooler."""
LONGEST = 512
UNSAFE = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config", "use_kernels",
          "use_pretrained_backbone", "use_timm_backbone")  # fmt: skip
"""Keys of a config by which transformers reads code or weights from elsewhere."""


class Pooled(nn.Module):
    """A transformers model whose output becomes one vector: first token, mean, or the model's own pooler."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        if pooling != "pooler" and isinstance(getattr(model, "pooler", None), nn.Module):
            model.pooler = None  # unused parameters would break training on several processes
        self.accepts = set(inspect.signature(model.forward).parameters)

    def forward(self, batch: Any) -> Tensor:
        inputs = {"pixel_values": batch} if isinstance(batch, Tensor) else dict(batch)
        if "interpolate_pos_encoding" in self.accepts:
            inputs["interpolate_pos_encoding"] = True  # no change at the size of the weights
        output = self.model(**{key: value for key, value in inputs.items() if key in self.accepts})
        if self.pooling == "pooler":
            return output.pooler_output.flatten(1)
        hidden = output.last_hidden_state
        if hidden.ndim == 4:  # convolutional: (batch, channels, height, width)
            hidden = hidden.flatten(2).mT
        if self.pooling == "cls":
            return hidden[:, 0]
        mask = inputs["attention_mask"] if "attention_mask" in inputs else hidden.new_ones(hidden.shape[:2])
        mask = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)


def build(name: str, options: BuildOptions) -> Parts:
    transformers = import_transformers()
    pooling = options.pooling
    if pooling not in (None, *POOLINGS):
        raise InputError(f"Expected `pooling` to be one of {', '.join(POOLINGS)}, but got {pooling!r}.")
    offline = Path(name).is_dir() or options.local_files_only or hub_offline()
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, local_files_only=offline, trust_remote_code=False
        )
        config = getattr(config, "vision_config", None) or config  # the image encoder of an image-text model
        image = hasattr(config, "num_channels")
        pooling = pooling or _default_pooling(name, config, image, offline)
        network = _network(name, config, pooling, options.pretrained, offline)
        architecture = json.loads(config.to_json_string(use_diff=False))
        architecture.pop("_name_or_path", None)  # a path of this machine
        if image:
            return Parts(network, _image(name, config, options.image_size, offline), architecture, pooling)
        tokenizer = HfTokenizer.load(name, local_files_only=offline)
    except InputError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        folder = "a folder with config.json, model.safetensors and, for text, the tokenizer files"
        if Path(name).is_dir():
            raise InputError(
                f"Could not read {name!r}: expected {folder}, but {first_line(error)}"
            ) from error
        remedy = f"Check the name and the connection, or give {folder}."
        raise no_download(f"hf:{name} from the Hugging Face Hub", remedy, error) from error
    length = _max_length(name, config, tokenizer, options.max_length, offline)
    text = TextPreprocessing(Path(name).name if Path(name).is_dir() else name, length)
    return Parts(network, text, architecture, pooling, tokenizer)


def rebuild(name: str, architecture: dict[str, Any], pooling: str | None) -> nn.Module:
    transformers = import_transformers()
    unsafe = sorted(key for key in architecture if key in UNSAFE and architecture[key])
    if unsafe:
        raise InputError(f"Expected no {unsafe[0]!r} in the architecture of hf:{name}: it names other files.")
    values = {key: value for key, value in architecture.items() if not key.startswith("_")}
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    return _network(name, config, pooling or "cls", pretrained=False, offline=True)


def names() -> list[str]:
    """Return examples; the Hub has many more."""
    return EXAMPLES


def is_name(name: str) -> bool:
    return True


def _network(name: str, config: Any, pooling: str, pretrained: bool, offline: bool) -> Pooled:
    auto = import_transformers().AutoModel
    missing: list[str] = []
    if pretrained:
        with quiet(offline):  # missing keys are checked below
            model, info = auto.from_pretrained(
                name,
                config=config,
                local_files_only=offline,
                output_loading_info=True,
                trust_remote_code=False,
            )
        missing = sorted(info["missing_keys"])
    else:
        model = auto.from_config(config, trust_remote_code=False)
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
        missing = [key for key in missing if not key.startswith("decoder.")]
    if pooling != "pooler":
        missing = [key for key in missing if not key.startswith("pooler.")]
    if missing:
        advice = "Use `pooling='cls'` or 'mean'." if missing[0].startswith("pooler.") else "Check the files."
        raise InputError(
            f"The weights of hf:{name} lack {len(missing)} tensors ({', '.join(missing[:3])}), "
            f"which would stay random. {advice}"
        )
    return Pooled(model.float(), pooling)


def _default_pooling(name: str, config: Any, image: bool, offline: bool) -> str:
    if image:
        return "cls" if config.model_type in CLS_IMAGE else "pooler"
    stated = _side_file(name, "1_Pooling/config.json", offline)  # sentence encoders state it
    if stated:
        modes = [key for key, on in stated.items() if key.startswith("pooling_mode_") and on is True]
        mode = str(stated.get("pooling_mode", "".join(modes)))
        if "mean" in mode or "cls" in mode:
            return "mean" if "mean" in mode else "cls"
        raise InputError(
            f"hf:{name} pools by {mode!r}, which is not supported. Pass pooling='mean' or 'cls'."
        )
    sentence = re.search(r"minilm|sentence|e5-|gte-", name.lower())
    return "cls" if config.model_type in CLS_TEXT and not sentence else "mean"


def _max_length(name: str, config: Any, tokenizer: HfTokenizer, asked: int | None, offline: bool) -> int:
    positions = getattr(config, "max_position_embeddings", None) or LONGEST
    stated = _side_file(name, "sentence_bert_config.json", offline).get("max_seq_length")
    limit = min(positions, tokenizer.tokenizer.model_max_length)
    if asked is not None and not 2 < asked <= limit:
        raise InputError(f"Expected `max_length` from 3 to {limit} for hf:{name}, but got {asked}.")
    return asked or min(limit, stated or LONGEST)


def _image(name: str, config: Any, image_size: tuple[int, int] | None, offline: bool) -> ImagePreprocessing:
    """Return the settings of preprocessor_config.json, completed by the defaults of its class."""
    own = getattr(config, "image_size", None) or 224
    default = (own, own) if isinstance(own, int) else tuple(own)
    if not _side_file(name, "preprocessor_config.json", offline):
        return ImagePreprocessing(image_size or default, crop_fraction=1.0)
    auto = import_transformers().AutoImageProcessor
    loaded = auto.from_pretrained(name, local_files_only=offline, trust_remote_code=False)
    values = loaded.to_dict()
    resized, cropped = _edges(values.get("size")), _edges(values.get("crop_size"))
    crop = cropped if values.get("do_center_crop") and cropped else None
    keep = "shortest_edge" in (values.get("size") or {})
    size = image_size or crop or resized or default
    fraction = crop[0] / resized[0] if crop and resized else float(values.get("crop_pct") or 1.0)
    normalize = values.get("do_normalize", True)
    return ImagePreprocessing(
        size=size,
        mean=tuple(values["image_mean"]) if normalize else (0.0,) * 3,
        std=tuple(values["image_std"]) if normalize else (1.0,) * 3,
        interpolation={0: "nearest", 2: "bilinear"}.get(int(values.get("resample") or 2), "bicubic"),
        crop_fraction=min(fraction, 1.0),
        keep_aspect=keep,
    )


def _edges(size: Any) -> tuple[int, int] | None:
    """Return (height, width) of `{"shortest_edge": n}`, `{"height": h, "width": w}` or a number."""
    if not size:
        return None
    if isinstance(size, int):
        return (size, size)
    edge = size.get("shortest_edge")
    return (edge, edge) if edge else (size["height"], size["width"])


def _side_file(name: str, file: str, offline: bool) -> dict[str, Any]:
    """Return a JSON file beside the model, or {} if there is none."""
    path = Path(name) / file if Path(name).is_dir() else hub_file(name, (file,), local_files_only=offline)
    if not path or regular_size(path) is None:
        return {}
    try:
        found = read_json(path)
    except ValueError as error:
        raise damaged(path, error) from None
    return found if isinstance(found, dict) else {}
