"""`sourceward list datasets|methods|adapters|backbones|presets|transforms|experiments`: names for others."""

import json as jsonlib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sourceward._util.errors import InputError, unknown_name
from sourceward.cli.options import Json


def list(
    what: Annotated[
        str,
        typer.Argument(help="datasets, methods, adapters, backbones, presets, transforms or experiments."),
    ] = "",
    filter: Annotated[
        str | None, typer.Argument(help="A substring or glob that the name must match.")
    ] = None,
    json: Json = False,
) -> None:
    """List datasets, training methods, adapters, backbones, presets, transforms or experiments."""
    if not what:
        raise InputError(
            f"Expected what to list: {', '.join(LISTS)}. Type for instance `sourceward list datasets`."
        )
    if what not in LISTS:
        raise unknown_name("list", what, LISTS)
    entries = LISTS[what](filter)
    if not entries:
        raise _no_match(what, filter)
    if json:
        typer.echo(jsonlib.dumps(entries, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    if what in PRINTED:
        PRINTED[what](console, entries)
        return
    for entry in entries:
        name, *rest = (str(value) for value in entry.values())
        console.print(f"[bold]{escape(name)}[/bold]" if rest else escape(name))
        for line in rest:
            console.print(f"  {escape(line)}")


def _datasets(filter: str | None) -> Any:
    from sourceward.data import list_datasets

    return [
        {"name": entry.name, "about": entry.about, "where": entry.where, "layout": entry.layout}
        for entry in list_datasets()
        if _matches(entry.name, filter)
    ]


def _adapters(filter: str | None) -> Any:
    from sourceward.adaptation import ADAPTERS, traits_table

    docs = {name: (ADAPTERS[name].__doc__ or "").strip().split("\n")[0] for name in ADAPTERS}
    adapters = [{**row, "about": docs[row["name"]]} for row in traits_table()]
    return [row for row in (*adapters, *_controls()) if _matches(row["name"], filter)]


def _methods(filter: str | None) -> Any:
    """Return the training methods, and `swad`, which is a setting of averaging."""
    from sourceward.bench.protocol.grid import SWAD, SWAD_ABOUT
    from sourceward.training.methods import methods_table

    rows = methods_table()
    rows.append(rows[0] | {"name": SWAD, "about": f"In `bench --methods`: {SWAD_ABOUT}"})
    return [row for row in rows if _matches(row["name"], filter)]


def _print_methods(console: Console, entries: Any) -> None:
    """Print what each training method needs, and the adapter that uses what it trains."""
    layout = "{:<18} {:<7} {:<8} {:<21} {}"
    console.print(layout.format("name", "images", "sources", "test-time adapter", ""), style="bold")
    for entry in entries:
        images, adapter = "yes" if entry["images"] else "-", entry["adapter"] or "-"
        needs = [entry["backbone"], *(f"{key}={value}".lower() for key, value in entry["settings"].items())]
        needed = ", ".join(filter(None, needs))
        about = f"{entry['about']} Needs {needed}." if needed else entry["about"]
        about += f" Trains {entry['trains']}." if entry["trains"] else ""
        line = (entry["name"], images, entry["sources"], adapter, about)
        console.print(escape(layout.format(*line)))


def _controls() -> Any:
    """Return the controls of `bench`: classifiers trained on the same features, stateless at test time."""
    from sourceward.bench.protocol.methods import LINEAR, SINGLE_SAMPLE

    about = {
        LINEAR: "Control of `bench`: logistic regression on the same features.",
        SINGLE_SAMPLE: "Control of `bench`: a classifier generated for each sample (Xiao et al., 2022).",
    }
    alone = {"changes_weights": False, "keeps_state": False, "needs_batch": False, "reads": "features"}
    return [{"name": name, **alone, "about": text} for name, text in about.items()]


def _print_traits(console: Console, entries: Any) -> None:
    """Print what each adapter reads and whether it changes weights, keeps state or needs a batch."""
    layout = "{:<21} {:<10} {:<9} {:<7} {:<7} {}"
    console.print(layout.format("name", "reads", "changes", "keeps", "needs", ""), style="bold")
    console.print(layout.format("", "", "weights", "state", "batch", ""), style="bold")
    for entry in entries:
        flags = (entry[flag] for flag in ("changes_weights", "keeps_state", "needs_batch"))
        marks = ("yes" if flag else "-" for flag in flags)
        console.print(escape(layout.format(entry["name"], entry["reads"], *marks, entry["about"])))


def _backbones(filter: str | None) -> Any:
    from sourceward.nn.backbones import list_backbones
    from sourceward.nn.backbones.resnet_v1 import SUFFIX

    originals = [f"torchvision:resnet{depth}{SUFFIX}" for depth in (50, 101, 152)]
    named = (*list_backbones(filter), *(name for name in originals if _matches(name, filter)))
    return [{"name": name} for name in named]


def _presets(filter: str | None) -> Any:
    from sourceward.training.presets import PRESETS

    chosen = {name: PRESETS[name] for name in PRESETS if _matches(name, filter)}
    chosen = {filter: chosen[filter]} if filter in chosen else chosen
    return [
        {
            "name": name,
            "about": preset.about,
            "dataset": preset.dataset,
            "backbone": {"value": preset.backbone, "source": preset.backbone_source},
            "settings": {key: value._asdict() for key, value in preset.values.items()},
        }
        for name, preset in chosen.items()
    ]


def _print_presets(console: Console, entries: Any) -> None:
    """Print one preset with the source of every value, or several with their values grouped by source."""
    for entry in entries:
        backbone, settings = entry["backbone"], entry["settings"]
        console.print(f"[bold]{escape(entry['name'])}[/bold]")
        console.print(escape(f"  {entry['about']}. Data {entry['dataset']}:/path"))
        values = {"--backbone": backbone, **settings}
        if len(entries) == 1:
            for name, value in values.items():
                console.print(escape(f"  {name:<24} {value['value']!s:<28} {value['source']}"))
            continue
        grouped: dict[str, str] = {}
        for name, value in values.items():
            source = value["source"].partition(":")[0]
            grouped[source] = f"{grouped.get(source, '')} {name}={value['value']}"
        for source, assignments in grouped.items():
            console.print(escape(f"  {source}:{assignments}"))
    if len(entries) > 1:
        console.print("`sourceward list presets NAME` prints the source of each value.")


def _transforms(filter: str | None) -> Any:
    from sourceward.data.transforms import TRANSFORMS

    return [{"name": name, "about": TRANSFORMS[name].about} for name in TRANSFORMS if _matches(name, filter)]


def _experiments(filter: str | None) -> Any:
    from sourceward.bench.experiments import list_experiments

    return [
        {"name": entry.name, "about": entry.about, "needs": f"Needs {entry.needs}."}
        for entry in list_experiments()
        if _matches(entry.name, filter)
    ]


def _no_match(what: str, filter: str | None) -> InputError:
    """Return the error for a filter without a match, with near names; backbones are too many for that."""
    if what == "backbones":
        return InputError(f"No backbone matches {filter!r}. `sourceward list backbones` lists all.")
    return unknown_name(what.removesuffix("s"), filter, [entry["name"] for entry in LISTS[what](None)])


def _matches(name: str, filter: str | None) -> bool:
    from fnmatch import fnmatchcase

    names = (name, name.partition(":")[2])  # a backbone matches without its family, too
    return filter is None or filter in name or any(fnmatchcase(each, filter) for each in names)


LISTS = {
    "datasets": _datasets,
    "methods": _methods,
    "adapters": _adapters,
    "backbones": _backbones,
    "presets": _presets,
    "transforms": _transforms,
    "experiments": _experiments,
}
PRINTED = {"adapters": _print_traits, "methods": _print_methods, "presets": _print_presets}
"""Lists that are tables."""
