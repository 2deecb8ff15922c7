"""What lies beside an exported file: how to prepare its inputs, and the model card."""

import platform
from dataclasses import asdict
from typing import Any

import torch

import sourceward
from sourceward.data.loading import image_geometry
from sourceward.model import Model
from sourceward.model.card import model_card
from sourceward.model.file import describe_model

FORMAT = 1


def preprocess(model: Model, noise_std: float, noise: dict[str, Any]) -> dict[str, Any]:
    """Everything a caller of the exported graph must know, as JSON values.

    Args:
        model: from `noise_off`.
        noise_std: of the model itself.
        noise: what noise off changes.
    """
    sources, classes, settings = len(model.sources), len(model.classes), model.settings
    return {
        "format": FORMAT,
        "kind": model.kind,
        "inputs": _inputs(model),
        "outputs": {
            "probabilities": {"dtype": "float32", "shape": ["batch", classes]},
            "per_source": {"dtype": "float32", "shape": ["batch", sources, classes]},
            "energy_before": {"dtype": "float32", "shape": ["batch", sources]},
            "energy_after": {"dtype": "float32", "shape": ["batch", sources]},
            "trust": {
                "dtype": "float32",
                "shape": ["batch"],
                "meaning": "estimated probability that the most probable class is right",
            },
            "agreement": {
                "dtype": "float32",
                "shape": ["batch"],
                "meaning": "share of the predictions of copies and sources that are the predicted class",
            },
        },
        "classes": list(model.classes),
        "sources": list(model.sources),
        "adaptation": {
            "num_steps": settings.num_steps,
            "sampler": settings.sampler,
            "step_size": settings.step.step_size,
            "aggregation": settings.aggregation,
            "tta": model.tta,
        },
        "noise": {"in_model": noise_std, "in_graph": 0.0, "difference": noise},
        "software": {
            "sourceward": sourceward.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def _inputs(model: Model) -> dict[str, Any]:
    if model.kind == "features":
        width = model.adapter.n_features_in_
        return {"features": {"dtype": "float32", "shape": ["batch", width]}}
    if model.kind == "text":
        assert model.backbone is not None
        tokens = {"dtype": "int64", "shape": ["batch", "length"]}
        prepare = {
            **model.backbone.preprocessing.to_dict(),
            "files": "tokenizer/",
            "padding": "right, to the longest text of the batch, with attention_mask 0",
        }
        if prepare["tokenizer"] == "hash":
            prepare["files"] = "none: id = 1 + crc32(word) % 4095 of each lower-case word or sign, 0 pads"
        return {"input_ids": {**tokens, "prepare": prepare}, "attention_mask": tokens}
    shape = image_geometry(model.preprocessing)
    prepare = {
        "rotate": "upright, by the EXIF orientation",
        "colour": "RGB",
        "resize": asdict(shape),
        "resize_rule": "crop: scale by max(height / crop_pct / h, width / crop_pct / w) with antialiasing, "
        "as PIL does, then take the centre; exact: scale to height x width, whatever the aspect",
        "normalization": "inside the graph",
    }
    size = {"dtype": "uint8", "shape": ["batch", 3, *model.preprocessing.size]}
    return {"images": {**size, "layout": "channels first, 0 to 255", "prepare": prepare}}


def card(model: Model, info: dict[str, Any], name: str) -> str:
    """The model card with a section on the exported file."""
    apart = max(info["check"]["largest_difference"].values())
    noise = info["noise"]["difference"]
    inputs = ", ".join(
        f"`{key}` {value['dtype']} {tuple(value['shape'])}" for key, value in info["inputs"].items()
    )
    outputs = ", ".join(f"`{key}` {tuple(value['shape'])}" for key, value in info["outputs"].items())
    section = (
        f"## Exported file\n\n`{name}` holds the whole prediction. It runs without sourceward.\n\n"
        f"- Inputs: {inputs}. `{name.rsplit('.', 1)[0]}.preprocess.json` says how to prepare them.\n"
        f"- Outputs: {outputs}.\n"
        f"- Checked against the model with {', '.join(map(str, info['check']['batches']))} rows of "
        f"{info['check']['samples']} samples: the largest difference in any output is {apart:.1g}.\n"
        f"- Noise is off in this file. On {noise['samples']} samples that changes probabilities by at most "
        f"{noise['largest_probability_difference']:.1g} and the label of {noise['changed_labels']}.\n"
    )
    return f"{model_card(describe_model(model))}\n{section}"
