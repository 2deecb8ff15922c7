"""PHEME: rumour detection in tweets that start a thread; five (or nine) news events are the domains."""

import json
from dataclasses import replace
from pathlib import Path

from sourceward._util.errors import InputError
from sourceward.data.dataset import DomainDataset, Problem, build
from sourceward.data.known.entry import known_dataset
from sourceward.data.table import read_table
from sourceward.data.tree import Tree, read_tree

EVENTS = ("charliehebdo", "ferguson", "germanwings-crash", "ottawashooting", "sydneysiege")
CLASSES = ("non-rumour", "rumour")
FOLDERS = {"non-rumours": "non-rumour", "rumours": "rumour"}
LABELS = {"0": "non-rumour", "1": "rumour"} | FOLDERS | {name: name for name in CLASSES}
SUFFIX = "-all-rnr-threads"  # of the nine-event release


@known_dataset(
    "pheme",
    about="Tweets that start a thread, rumour or not: 5,802 tweets, 5 events (Zubiaga et al. 2016).",
    where="figshare, 'PHEME dataset of rumours and non-rumours', https://figshare.com/articles/dataset/4010619",
    layout="<root>/<event>/<rumours|non-rumours>/<id>/<source-tweet|source-tweets>/<id>.json, a folder or a "
    ".tar; or a CSV with columns event, label (1 = rumour), tweet_id, text.",
)
def read_pheme(path: str | Path, *, events: str | tuple[str, ...] = EVENTS) -> DomainDataset:
    """Read PHEME; `events` are the five of the paper by default, or "all"."""
    is_table = Path(path).suffix.lower() in (".csv", ".tsv", ".parquet")
    dataset = _read_flat(path) if is_table else _read_threads(read_tree(path))
    if events == "all":
        return dataset
    wanted = [event for event in events if event in dataset.domain_names]
    if not wanted:
        raise InputError(
            f"'{path}' holds none of the events {', '.join(events)}, but {', '.join(dataset.domain_names)}. "
            'Pass events="all" to use those.'
        )
    absent = tuple(
        Problem("missing_domain", event, f"'{path}' has no event {event!r}.")
        for event in events
        if event not in wanted
    )
    chosen = dataset.of_domains(wanted)
    return replace(chosen, problems=chosen.problems + absent)


def _read_flat(path: str | Path) -> DomainDataset:
    table = read_table(path, domain="event", label="label", text="text", id="tweet_id")
    unknown = sorted(set(table.classes) - set(LABELS))
    if unknown:
        raise InputError(f"Expected labels 0 and 1 in '{path}', but got {unknown[0]!r}. 1 means rumour.")
    labels = [LABELS[table.classes[code]] for code in table.labels]
    domains = [table.domain_names[code] for code in table.domains]
    return build(
        "text",
        table.items,
        labels,
        domains,
        table.ids,
        classes=CLASSES,
        problems=table.problems,
        name=str(path),
    )


def _read_threads(tree: Tree) -> DomainDataset:
    texts, labels, domains, ids = [], [], [], []
    problems = []
    for path in tree.files:
        parts = path.split("/")
        if len(parts) < 5 or parts[-4] not in FOLDERS or parts[-2] not in ("source-tweet", "source-tweets"):
            continue  # reactions and annotations: not samples
        event = parts[-5].removesuffix(SUFFIX)
        text = _tweet_text(tree, path)
        if text:
            texts.append(text)
            labels.append(FOLDERS[parts[-4]])
            domains.append(event)
            ids.append(f"{event}/{parts[-4]}/{parts[-3]}")
        else:
            problems.append(Problem("unreadable", path, f"{path!r} holds no tweet with a text.", event))
    if not texts:
        raise InputError(
            f"'{tree.root}' holds no PHEME threads: expected "
            "<event>/<rumours|non-rumours>/<id>/source-tweets/<id>.json. Pass the folder of the events."
        )
    return build(
        "text", tuple(texts), labels, domains, ids, classes=CLASSES, problems=problems, name=str(tree.root)
    )


def _tweet_text(tree: Tree, path: str) -> str:
    try:
        tweet = json.loads(tree.text(path))
        return str(tweet.get("full_text") or tweet.get("text") or "").strip()
    except (ValueError, AttributeError, RecursionError):
        return ""
