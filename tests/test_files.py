"""One reader and one writer: no other module opens a file by itself.

`_util/reading.py` refuses devices, pipes and files that are too large; `_util/storage.py` writes whole files
and replaces regular ones only. A call that goes around them is found here, in the code.
"""

import ast
from pathlib import Path

import sourceward

ROOT = Path(sourceward.__file__).parent

CALLS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "unlink", "rename", "touch"),
    *("open", "fdopen", "load", "save", "savez", "savefig", "load_file", "save_file", "safe_open"),
    *("ParquetFile", "ParquetWriter", "write_table", "memmap", "fromfile", "tofile", "to_csv"),
}
"""Names of functions and methods that open a file by its path."""

ALLOWED = {
    "_util/reading.py": "the reader",
    "_util/storage.py": "the writer",
    "_util/threads.py": "files of the kernel",
    "bench/speed/timing.py": "files of the kernel",
    "deploy/server_load.py": "files of the kernel",
    "bench/large.py": "makes its own input in a temporary folder",
    "cli/bench_serve.py": "makes its own input in a temporary folder",
    "bench/protocol/provenance.py": "reads the code of this package",
}
CHECKED = {
    ("data/table.py", "ParquetFile"): "after `check_regular`",
    ("deploy/parquet.py", "ParquetFile"): "after `check_regular`",
    ("deploy/parquet.py", "ParquetWriter"): "to a stream of `atomic_file`",
    ("deploy/parquet.py", "write_table"): "to that `ParquetWriter`",
    ("deploy/batch.py", "write_table"): "that of `deploy.parquet`",
    ("data/arrays.py", "load"): "from a stream of `open_regular`",
    ("data/arrays.py", "safe_open"): "after `check_regular`",
    ("data/cache.py", "load"): "after `check_regular`",
    ("data/cache.py", "save"): "to a stream of `atomic_file`",
    ("data/cache.py", "unlink"): "files whose names only the cache writes",
    ("data/features.py", "unlink"): "a torn file of the cache",
    ("data/known/corrupted.py", "load"): "after `check_regular`",
    ("data/stored.py", "open"): "`tarfile`, from a stream of `open_regular`",
    ("data/decode.py", "open"): "an image in memory",
    ("data/corruptions/digital.py", "open"): "an image in memory",
    ("model/banks.py", "savez"): "to a stream of `atomic_file`",
    ("model/hub.py", "read_text"): "a file of this package",
    ("nn/backbones/weights.py", "load"): "after `regular_size`",
    ("nn/backbones/weights.py", "load_file"): "after `regular_size`",
    ("deploy/export.py", "save"): "to a temporary folder",
    ("deploy/export.py", "load"): "from that temporary folder",
    ("deploy/server.py", "read_text"): "a file of this package",
    ("report/page.py", "read_text"): "a file of this package",
    ("report/figures.py", "savefig"): "to memory or a stream of `atomic_file`",
    ("bench/published.py", "read_text"): "a file of this package",
    ("training/run_folder.py", "unlink"): "what the run itself wrote",
    ("training/finetune.py", "unlink"): "what the run itself wrote",
    ("fitting/adapter.py", "unlink"): "what the run itself wrote",
    ("bench/experiments/comparison.py", "unlink"): "what the bench itself wrote",
}
LIBRARIES = ("np", "numpy", "torch")
"""Whose `load` and `save` take a path; those of others are ours."""


def opened(file: Path) -> set[str]:
    """The names in `CALLS` that a module calls."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        call = node.func
        name = call.id if isinstance(call, ast.Name) else getattr(call, "attr", "")
        owner = getattr(call, "value", None)
        while isinstance(owner, ast.Attribute):  # torch.export.save
            owner = owner.value
        word = owner.id if isinstance(owner, ast.Name) else ""
        if name in ("load", "save") and word not in LIBRARIES:
            continue
        if name in CALLS and not (name == "open" and word == "folder"):  # `RunFolder.open`
            found.add(name)
    return found


def test_no_module_opens_a_file_by_itself():
    strange = {}
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if name not in ALLOWED:
            rest = {call for call in opened(file) if (name, call) not in CHECKED}
            if rest:
                strange[name] = sorted(rest)
    assert strange == {}, "use `_util.reading` and `_util.storage`, or say here why not"


def test_every_exception_is_still_needed():
    used = {(f.relative_to(ROOT).as_posix(), call) for f in ROOT.rglob("*.py") for call in opened(f)}
    assert {pair for pair in CHECKED if pair not in used} == set()
    assert {name for name in ALLOWED if not any(file == name for file, _ in used)} == set()


def test_no_code_of_the_hub_is_run():
    """Every call of `transformers` that could run it says no; a state dict is read as tensors only."""
    without = []
    for file in (ROOT / "nn" / "backbones").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            wanted = {"from_pretrained": ("trust_remote_code", False), "load": ("weights_only", True)}
            wanted["from_config"] = wanted["from_pretrained"]
            if name in wanted and getattr(node.func.value, "id", "") in ("auto", "AutoConfig", "torch", ""):
                given = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
                if given.get(wanted[name][0]) is not wanted[name][1]:
                    without.append(f"{file.name}:{node.lineno}")
    assert without == []
