"""Cases of tables: odd cells and columns, any dialect of CSV, Parquet, and damage to them."""

import csv
import io
import os

from sourceward import open_dataset
from sourceward.model.inputs import find_inputs
from tests.fuzz.kinds import Finding, Random, World, both, image_bytes, pipe, use_dataset, value
from tests.fuzz.mutate import WORDS, damage, pick


def tables(world: World, rng: Random) -> str:
    (world.work / "a.png").write_bytes(image_bytes(rng))
    if rng.random() < 0.25:
        return _dialect(world, rng)
    if rng.random() < 0.3:
        os.mkfifo(world.work / "pipe.png")  # one of the words
    names = [
        pick(rng, ("text", "path", "domain", "label", "split", "id", pick(rng, WORDS))) for _ in range(4)
    ]
    names[:3] = (pick(rng, ("text", "path")), "domain", "label") if rng.random() < 0.7 else names[:3]
    rows = [[pick(rng, WORDS) for _ in names] for _ in range(int(rng.integers(0, 9)))]
    suffix = pick(rng, (".csv", ".tsv", ".parquet"))
    path = world.work / f"table{suffix}"
    if suffix == ".parquet":
        path.write_bytes(_parquet(names, rows, rng))
    else:
        line = "," if suffix == ".csv" else "\t"
        text = "\n".join(line.join(row) for row in [names, *rows])
        path.write_bytes(text.encode(pick(rng, ("utf-8", "utf-16", "latin-1")), "replace"))
    if rng.random() < 0.5:
        path.write_bytes(damage(path.read_bytes(), rng))
    pipe(path, rng)
    kind, root = pick(rng, ("text", "image")), pick(rng, (None, str(world.work)))
    return both(
        lambda: use_dataset(open_dataset(path, root=root)),
        lambda: [value(sample) for sample in find_inputs(kind, [path], root=root)],
    )


def _dialect(world: World, rng: Random) -> str:
    """A table of any dialect that `csv` can write: the texts are read as they were written, or refused."""
    texts = [
        f"{pick(rng, WORDS)} {pick(rng, WORDS)} x".replace("\0", "").replace("\ud800", "") for _ in range(6)
    ]
    mark, line = pick(rng, (",", ";", "|", "\t", "^", "é")), pick(rng, ("\n", "\r\n", "\r"))
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=mark, lineterminator=line, quoting=pick(rng, (0, 1, 2)))
    writer.writerow(["text", "domain", "label"])
    writer.writerows([text, "a" if i % 2 else "b", "0" if i < 3 else "1"] for i, text in enumerate(texts))
    path = world.work / "table.csv"
    path.write_bytes(stream.getvalue().encode(pick(rng, ("utf-8", "utf-8-sig"))))
    if list(open_dataset(path, delimiter=mark).items) != texts:
        raise Finding(f"other texts than were written with {mark!r}")
    return "used"


def _parquet(names: list[str], rows: list[list[str]], rng: Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    makers = (
        lambda column: pyarrow.array([word.encode("utf-8", "replace") for word in column]),
        lambda column: pyarrow.array([word.encode("utf-8", "replace").decode() for word in column]),
        lambda column: pyarrow.array(
            [2**55 * min(len(word), 20) for word in column], pyarrow.timestamp("ms")
        ),
        lambda column: pyarrow.array([[len(word)] for word in column], pyarrow.list_(pyarrow.int64())),
    )
    columns = {
        name.encode("utf-8", "replace").decode(): [row[i] for row in rows] for i, name in enumerate(names)
    }
    stream = io.BytesIO()
    parquet.write_table(pyarrow.table({n: pick(rng, makers)(c) for n, c in columns.items()}), stream)
    return stream.getvalue()
