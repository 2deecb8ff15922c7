"""The README of a model folder."""

from typing import Any

from sourceward.data.transforms import TURNS
from sourceward.estimator import ExpectedGain
from sourceward.validation.leave_one_domain_out import FEWEST_SOURCES


def model_card(config: dict[str, Any]) -> str:
    """What the model is, what it was trained on, how good it was there, how to use it."""
    backbone = config["backbone"]
    name = "feature vectors" if backbone is None else f"`{backbone['family']}:{backbone['name']}`"
    sources, classes, adapt = config["sources"], config["classes"], config["adapt"]
    shown = ", ".join(classes[:20]) + (f" and {len(classes) - 20} more" if len(classes) > 20 else "")
    lines = [
        "---",
        "library_name: sourceward",
        "tags: [domain-generalization, test-time-adaptation, energy-based-model]",
        "---",
        "# A sourceward model",
        "",
        "Samples are moved toward the source domains where that pays, then classified; no weight changes.",
        "",
        f"- Reads: {config['kind']} ({name})",
        f"- Classes ({len(classes)}): {shown}",
        f"- Source domains: {', '.join(sources)}",
        f"- Walk at test time: {_walk(adapt)}",
        *_scores(config.get("metrics") or {}),
        f"- Will adaptation help on an unseen domain? {_promise(config.get('expected_gain'))}",
        *_views(config.get("views", ""), config.get("tta_gain")),
        "",
        "```python",
        "import sourceward as sw",
        "",
        'model = sw.load("this/folder")',
        f"model.predict({_EXAMPLE[config['kind']]})",
        "```",
        "",
    ]
    return "\n".join(lines)


def _walk(adapt: dict[str, Any]) -> str:
    steps = adapt["num_steps"]
    return f"{steps} steps of {adapt['step']['step_size']:g}" if steps else "none: samples stay in place"


def _promise(told: dict[str, Any] | None) -> str:
    """What the sources said when each played the unseen domain."""
    if told is None:
        return (
            f"Nobody asked: it takes `num_steps=auto` and {FEWEST_SOURCES} sources, each of which then plays "
            "the unseen one."
        )
    return f"{ExpectedGain(**told)}."


def _views(asked: str, told: dict[str, Any] | None) -> list[str]:
    """What was found out about views, and which are asked about where that is something else."""
    lines = [f"- And other pictures? {views_text(told)}"] if told else []
    if asked != (told["views"] if told and told["adapts"] else ""):
        lines.append(f"- Asked about, as you chose: each image {how_text(asked) if asked else 'alone'}.")
    return lines


VIEW_TEXT = {
    "flip": "mirrored",
    "zoom": "from closer by",
    "turn": f"turned by {' and '.join(f'{angle:g}' for angle in TURNS if angle > 0)} degrees either way",
    "gray": "in gray",
    "sketch": "redrawn in sketch",
    "style": "in the style of every source",
    "adain": "with the feature_statistics of every source",
}


def how_text(views: str) -> str:
    """Views in words."""
    *most, last = (VIEW_TEXT[name] for name in views.split("+"))
    return f"{', '.join(most)} and {last}" if most else last


def views_text(told: dict[str, Any]) -> str:
    """What was gained by asking about views, and on what."""
    how, gains, home = how_text(told["views"]), told["per_source"], told.get("home")
    if home:
        ends = (pick(gains, key=lambda name: gains[name]) for pick in (min, max))
        spread = " to ".join(_changes({name: gains[name]}) for name in dict.fromkeys(ends))
        parts = f"imagined domains: {spread}; held-out samples as they are: {_changes(home)}"
    else:
        of = "held-out samples of the sources" if told["seen"] else "pretend targets"
        parts = f"{of}: {_changes(gains)}"
    if not told["adapts"]:
        return f"Asking about each image {how}, too, is not worth it ({parts})."
    low, gain, high = (100 * told[key] for key in ("low", "gain", "high"))
    known = told["seen"] and not home
    where = "on what the backbone knows, perhaps more elsewhere," if known else "expected"
    crosses = len(home or ()) >= FEWEST_SOURCES
    caveat = (
        "The backbone knew these sources: `crossfit=true` asks domains that it did not. " if crosses else ""
    )
    return (
        f"{gain:+.1f} points {where} ({low:+.1f} to {high:+.1f}) by asking about each image {how}, too; "
        f"{parts}. {caveat}"
        "It costs a pass of the backbone for every picture; `predict --views none` does without."
    )


def _changes(gains: dict[str, float]) -> str:
    return ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in gains.items())


_EXAMPLE = {"image": '["a.jpg"]', "text": '["a text"]', "features": "X"}


def _scores(metrics: dict[str, Any]) -> list[str]:
    if "adapted" not in metrics:
        return []
    return [
        f"- Accuracy on source validation: {100 * metrics['adapted']:.1f} % adapted, "
        f"{100 * metrics['unadapted']:.1f} % without adaptation. An unseen domain will be harder.",
    ]
