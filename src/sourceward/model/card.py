"""The model card: the README of a model folder."""

from typing import Any

from sourceward._util.tables import not_covered
from sourceward.nn.backbones import ImagePreprocessing
from sourceward.nn.backbones.preprocessing import from_dict
from sourceward.validation.expected_gain import ExpectedGain

SHOWN_CLASSES = 20
NOT_ESTIMATED = (
    "Not estimated: the expected gain on an unseen domain needs at least 3 source domains, "
    "`num_steps='auto'` and, with a fine-tuned backbone, `recipe=two-stage` and `crossfit` above 0."
)
ACCURACY = "Expected accuracy on an unseen domain"
ADAPTS = "Adapts each test sample to the source domains, then classifies it. No weight of the model changes."
CLASSIFIES = "Adaptation is off: each prediction is the classifier's own."

_INPUT = {"image": "Images", "text": "Texts", "features": "Feature vectors"}
_EXAMPLE = {"image": '["a.jpg"]', "text": '["a text"]', "features": "X"}


def model_card(config: dict[str, Any]) -> str:
    """Return the card of a model in Markdown.

    Args:
        config: the content of `config.json`.
    """
    sections = {
        "Input": _input(config),
        "Classes": _classes(config["classes"]),
        "Source domains": f"{', '.join(config['sources'])}.",
        "Adaptation": _adaptation(config),
        "Accuracy on source validation": _accuracy(config.get("metrics") or {}),
        "Expected gain": expected_gain_text(config.get("expected_gain"), config.get("tta", "")),
        "How to use": _usage(config["kind"]),
    }
    head = [
        "---",
        "library_name: sourceward",
        "tags: [domain-generalization, test-time-adaptation, energy-based-model]",
        "---",
        "# A sourceward model",
        "",
        expected_accuracy_text(config.get("expected_gain")),
        "",
        ADAPTS if _adapts(config) else CLASSIFIES,
        "",
    ]
    return "\n".join([*head, *(f"## {title}\n\n{text}\n" for title, text in sections.items() if text)])


def expected_accuracy_text(expected: dict[str, Any] | None) -> str:
    """Return the sentence on the expected accuracy; `expected` is an `ExpectedGain` as a dictionary."""
    if expected is None or expected.get("accuracy") is None:
        return f"{ACCURACY}: not estimated."
    return f"{ACCURACY}: {ExpectedGain(**expected).accuracy_text}."


def expected_gain_text(expected: dict[str, Any] | None, tta: str = "") -> str:
    """Return the sentence on the expected gain, and one where it is not that of the transforms in use.

    Args:
        expected: an `ExpectedGain` as a dictionary.
        tta: the model's transforms.
    """
    if expected is None:
        return NOT_ESTIMATED
    more = not_covered(expected.get("tta", ""), tta)
    return (
        "Expected gain on an unseen domain, estimated by leave-one-domain-out validation: "
        f"{ExpectedGain(**expected)}.{f' {more}' if more else ''}"
    )


def and_list(names: list[str]) -> str:
    """Join names for a sentence.

    >>> and_list(["hflip", "crop", "adain"]), and_list(["hflip"])
    ('hflip, crop and adain', 'hflip')
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _input(config: dict[str, Any]) -> str:
    backbone, kind = config["backbone"], _INPUT[config["kind"]]
    return (
        f"{kind}."
        if backbone is None
        else f"{kind}; the backbone is `{backbone['family']}:{backbone['name']}`."
    )


def _classes(classes: list[str]) -> str:
    more = len(classes) - SHOWN_CLASSES
    shown = ", ".join(classes[:SHOWN_CLASSES]) + (f" and {more} more" if more > 0 else "")
    return f"{len(classes)}: {shown}."


def _adapts(config: dict[str, Any]) -> bool:
    """Return whether predictions use steps, transforms or weights by energy."""
    adapt = config["adapt"]
    return bool(adapt["num_steps"] or config.get("tta") or adapt.get("aggregation", "mean") != "mean")


def _adaptation(config: dict[str, Any]) -> str:
    """Return what happens to a sample at test time: steps, transforms, and which samples get copies."""
    adapt, tta, adapter = config["adapt"], config.get("tta", ""), config.get("adapter") or {}
    sampler, size = adapt.get("sampler", "langevin"), adapt["step"]["step_size"]
    steps = (
        f"{adapt['num_steps']} `{sampler}` steps of size {size:g} for each source"
        if adapt["num_steps"]
        else "none"
    )
    copies = f"{and_list(tta.split('+'))} (`predict --tta none` predicts without)" if tta else "none"
    thresholds = (adapter.get("tta_leads") or []) if tta and tta == adapter.get("tta") else []
    some = ""
    if thresholds:
        share = f"less than {thresholds[0]:.3f} of the probability of the two most probable"
        some = f", where the most probable class has {share}"
    if thresholds[1:]:
        first, *others = tta.split("+")
        some += f"; {and_list(others)} where with {first} it still has less than {thresholds[1]:.3f}"
    return f"- Steps: {steps}.\n- Test-time augmentation: {copies}{some}.{_size_of_copies(config, tta)}"


def _size_of_copies(config: dict[str, Any], tta: str) -> str:
    """Return how large copies are, where they are smaller than the image."""
    values = (config["backbone"] or {}).get("preprocessing")
    if not tta or values is None:
        return ""
    prepared = from_dict("image", values)
    assert isinstance(prepared, ImagePreprocessing)
    small = " x ".join(map(str, prepared.copy_size))
    return f" Copies have {small} pixels." if prepared.copy_size != prepared.size else ""


def _accuracy(metrics: dict[str, Any]) -> str:
    if metrics.get("adapted") is None or metrics.get("unadapted") is None:
        return ""
    return (
        f"{100 * metrics['adapted']:.1f} % with adaptation, {100 * metrics['unadapted']:.1f} % without. "
        "Expect less on an unseen domain."
    )


def _usage(kind: str) -> str:
    lines = (
        "import sourceward as sw",
        "",
        'model = sw.load("this/folder")',
        f"model.predict({_EXAMPLE[kind]})",
    )
    return "\n".join(["```python", *lines, "```"])
