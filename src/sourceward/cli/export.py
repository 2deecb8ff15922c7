"""`sourceward export RUN --to model.onnx`: the whole prediction as one file."""

import json as jsonlib
import sys
from typing import Annotated

import typer

from sourceward.cli.options import Json, NumSteps, RunPath, Tta, load_model


def export(
    run: RunPath,
    to: Annotated[str, typer.Option(metavar="FILE", help="File to write, .onnx or .pt2 (torch.export).")],
    samples: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT", help="Files for the check, as for `predict`; may be repeated. Made up without."
        ),
    ] = None,
    num_steps: NumSteps = None,
    tta: Tta = None,
    timings: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Also time the file beside the model, and write the times there."),
    ] = None,
    json: Json = False,
) -> None:
    """Write the whole prediction to one file that runs without sourceward.

    The file takes uint8 images, token ids or float features, any number of rows, and returns probabilities,
    those of each source, energies before and after adaptation, trust and agreement. Noise is off in it. It is
    checked against the model with 1, 2 and 7 rows, and is not written if an output differs by more than 1e-4.
    Beside it are `<name>.preprocess.json`, which says how to prepare the inputs, and the card `<name>.md`.
    """
    from sourceward._util.storage import check_targets, write_whole
    from sourceward.deploy.export import check_path
    from sourceward.deploy.export import export as write
    from sourceward.deploy.export_samples import given_samples

    path = check_path(to)
    check_targets(timings)
    model = load_model(run, "cpu", num_steps, tta)
    info = write(model, path, samples=given_samples(model, samples) if samples else None)
    if timings is not None:
        from sourceward.bench.protocol.provenance import command, versions
        from sourceward.deploy.export_timings import measure_timings

        found = {"command": command(sys.argv), "versions": versions(), **measure_timings(model, path)}
        write_whole(timings, jsonlib.dumps(found, indent=1) + "\n")
        info["timings"] = found
    if json:
        typer.echo(jsonlib.dumps(info))
        return
    noise = info["noise"]["difference"]
    typer.echo(
        f"Wrote {path}, and beside it how to prepare inputs (.preprocess.json) and a card (.md). "
        "Largest difference from the model: "
        f"{max(info['check']['largest_difference'].values()):.1g}, on {info['check']['samples']} samples. "
        f"Noise is off: on {noise['samples']} samples that changes probabilities by at most "
        f"{noise['largest_probability_difference']:.1g} and the label of {noise['changed_labels']}."
    )
