"""A Gradio app for a model. `push_to_hub` uploads this file as `app.py`, for a Space of the Hugging Face Hub.

It serves the model folder it lies in, or the one that the variable MODEL names: a folder or a Hub repository.
"""

import os
from pathlib import Path
from typing import Any

import sourceward as sw


def build_app(model: sw.Model) -> Any:
    """Return a Gradio interface: one sample in; label, trust, and what each source predicts out."""
    import gradio

    def predict(given: Any) -> tuple[dict[str, float], str, list[list[Any]]]:
        try:
            result = model.adapt([read(model, given)])
        except (sw.InputError, ValueError) as error:
            raise gradio.Error(str(error)) from None
        found = model.explain(result)[0]
        probabilities = dict(zip(model.classes, map(float, result.probabilities[0])))
        about = f"trust {found.trust:.1%}, agreement {found.agreement:.1%}, status: {found.status}"
        rows = [
            [name, label, found.energy_before[name], found.energy_after[name]]
            for name, label in found.source_labels.items()
        ]
        return probabilities, about, rows

    inputs = {
        "image": lambda: gradio.Image(type="pil", label="image"),
        "text": lambda: gradio.Textbox(lines=4, label="text"),
        "features": lambda: gradio.Textbox(lines=4, label="features: numbers, separated by commas"),
    }
    outputs = [
        gradio.Label(num_top_classes=7, label="label"),
        gradio.Textbox(label="trust"),
        gradio.Dataframe(headers=["source", "label", "energy before", "energy after"], label="sources"),
    ]
    return gradio.Interface(predict, inputs[model.kind](), outputs, title="sourceward", api_name="predict")


def read(model: sw.Model, given: Any) -> Any:
    """Return a sample as the model takes it."""
    if given is None or (isinstance(given, str) and not given.strip()):
        raise sw.InputError(f"Expected one sample ({model.kind}), but got none.")
    return (
        [float(number) for number in given.replace(",", " ").split()] if model.kind == "features" else given
    )


if __name__ == "__main__":
    here = Path(__file__).parent
    build_app(sw.Model.from_pretrained(os.environ.get("MODEL", here))).launch()
