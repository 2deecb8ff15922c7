"""The fuzz campaign: seeded cases of every kind in guarded processes, and a file of results.

    make fuzz                                                    about 10,000 cases on two cores
    python -m tests.fuzz.campaign --cases 500 --first 2000      a part of it
    python -m tests.fuzz.campaign --kind archives --case 17     one case again, with its traceback

A finding is an exception that is not ours, an error of several lines, a case of more than 60 seconds, a
process of more than 4 GB, a file written outside of the folder of the case, a program that was started, a
connection to another machine, or an answer that damage changed silently.
"""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SHARES = {
    "images": 23,
    "tables": 12,
    "features": 10,
    "archives": 10,
    "model_folders": 8,
    "estimators": 3,
    "arguments": 4,
    "requests": 7,
    "states": 4,
    "results": 5,
    "drift": 3,
    "runs": 1,
    "configs": 3,
    "caches": 2,
    "known": 3,
    "weights": 2,
}
"""Cases of each kind, in per cent."""
SECONDS, GIGABYTES, ADDRESSES = 60, 4, 16
"""Most time of a case, most memory of a process, and most address space, of which torch maps a lot unused."""
CANARY = "unchanged"


def plan(cases: int, first: int = 0, kinds: Iterable[str] = SHARES) -> list[tuple[str, int]]:
    """The kind and number of each case; any range of them holds all kinds."""
    order = [kind for kind, share in SHARES.items() for _ in range(share)]
    order = [order[37 * place % 100] for place in range(100)]
    wanted = set(kinds)
    return [(kind, n) for n in range(first, first + cases) if (kind := order[n % 100]) in wanted]


def run_case(world: Any, kind: str, number: int, seed: int) -> str:
    """Run one case; "used" or "refused", or an exception that is a finding."""
    import numpy as np

    from sourceward._util.errors import InputError, TrainingError
    from tests.fuzz import archives, arguments, folders, http, kinds, known, tables
    from tests.fuzz.watch import WATCH

    shutil.rmtree(world.work, ignore_errors=True)
    world.work.mkdir()
    modules = (kinds, archives, tables, folders, known, http, arguments)
    function = next(getattr(module, kind) for module in modules if hasattr(module, kind))
    WATCH.start(world.folder)
    try:
        return function(world, np.random.default_rng((seed, number)))
    except (InputError, TrainingError) as error:
        if len(str(error).splitlines()) > 1:
            raise kinds.Finding(f"an error of several lines: {error}") from error
        return "refused"
    finally:
        seen = WATCH.stop()
        here = {path.name for path in world.folder.iterdir()}
        seen += sorted(here - {"models", "work", "cache", "tmp", CANARY})
        if seen or (world.folder / CANARY).read_text() != CANARY:
            raise kinds.Finding(f"outside of the folder: {seen[:5]}")


def make_world(folder: Path) -> Any:
    """Train the models that cases use, and put a file where none may be written."""
    from tests.fuzz.kinds import World

    os.environ["SOURCEWARD_CACHE"] = str(folder / "cache")
    (folder / "tmp").mkdir()
    tempfile.tempdir = os.environ["MPLCONFIGDIR"] = str(folder / "tmp")
    from matplotlib import font_manager  # noqa: F401, starts another program, once, to list fonts

    world = World.create(folder)
    (folder / CANARY).write_text(CANARY)
    os.chdir(world.folder)
    return world


def _worker(connection: Connection, cases: list[tuple[str, int]], seed: int) -> None:
    """Run cases, and send each before and after it."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES * 2**30, ADDRESSES * 2**30))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        for kind, number in cases:
            connection.send(("start", kind, number, ""))
            signal.signal(signal.SIGALRM, _too_long)
            signal.alarm(SECONDS)
            try:
                connection.send((run_case(world, kind, number, seed), kind, number, ""))
            except BaseException:
                connection.send(("finding", kind, number, traceback.format_exc()[-2000:]))
            finally:
                signal.alarm(0)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            if peak > GIGABYTES:
                connection.send(("finding", kind, number, f"{peak:.1f} GB of memory"))
                break  # a new process goes on
        connection.send(("end", "", -1, f"{peak:.2f}"))
        os.chdir("/")


class TooLong(BaseException):
    """No `Exception`, and no `OSError` as `TimeoutError` is: readers turn those into refusals."""


def _too_long(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} seconds")


def campaign(cases: list[tuple[str, int]], seed: int, workers: int = 2) -> dict[str, Any]:
    """Run all cases and return counts and findings."""
    context = multiprocessing.get_context("spawn")
    counts: dict[str, Counter] = {kind: Counter() for kind in SHARES}
    findings, peak, running = [], 0.0, {}

    def start(part: list[tuple[str, int]]) -> None:
        here, there = context.Pipe()
        process = context.Process(target=_worker, args=(there, part, seed))
        process.start()
        there.close()
        running[here] = [process, part, time.monotonic(), None]

    for place in range(workers):
        start(cases[place::workers])
    while running:
        for connection in wait(list(running), timeout=5):
            state = running[connection]
            try:
                event, kind, number, text = connection.recv()
            except EOFError:
                event, kind, number, text = "lost", *(state[3] or ("start", -1)), "the process died"
            state[2] = time.monotonic()
            if event == "start":
                state[3] = (kind, number)
            elif event in ("used", "refused"):
                counts[kind][event] += 1
            if event in ("finding", "lost"):
                findings.append({"kind": kind, "case": number, "what": text})
                print(f"finding: {kind} {number}: {text.strip().splitlines()[-1]}", flush=True)
            if event in ("end", "lost"):
                peak = max(peak, float(text)) if event == "end" else peak
                _next(running, connection, start)
        for connection, state in list(running.items()):
            if time.monotonic() - state[2] > 3 * SECONDS:  # no alarm reaches code that never returns
                findings.append({"kind": state[3][0], "case": state[3][1], "what": "hangs"})
                state[0].kill()
                _next(running, connection, start)
    return {
        "cases": {kind: dict(count) for kind, count in counts.items()},
        "findings": findings,
        "peak_gb": peak,
    }


def _next(running: dict, connection: Any, start: Any) -> None:
    """End a process; a new one goes on after its last case."""
    process, part, _, last = running.pop(connection)
    process.join(5)
    rest = part[part.index(last) + 1 :] if last in part else []
    if rest:
        start(rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", action="append")
    parser.add_argument("--case", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(run_case(make_world(Path(folder)), options.kind[0], options.case, options.seed))
            os.chdir("/")
        return
    started = time.monotonic()
    result = campaign(
        plan(options.cases, options.first, options.kind or SHARES), options.seed, options.workers
    )
    result |= {"first": options.first, "seconds": round(time.monotonic() - started)}
    print(json.dumps(result, indent=1))
    if options.out is not None:
        _add(options.out, result, options.seed)
    sys.exit(1 if result["findings"] else 0)


def _add(out: Path, result: dict[str, Any], seed: int) -> None:
    """Write the results file; a part of a campaign is added to the parts before it."""
    import torch

    from sourceward import __version__

    versions = {"sourceward": __version__, "torch": torch.__version__, "python": platform.python_version()}
    parts = json.loads(out.read_text())["parts"] if out.exists() and result["first"] else []
    parts.append(result)
    total = {k: sum(sum(p["cases"][k].values()) for p in parts) for k in SHARES}
    other = f"python -m tests.fuzz.campaign --seed {seed} --cases {sum(total.values())} --out {out}"
    command = other if seed else "make fuzz"
    head = {"command": command, "seed": seed, "versions": versions, "cases": sum(total.values())}
    head |= {"cases_per_kind": total, "findings": sum(len(part["findings"]) for part in parts)}
    head |= {"peak_gb": max(p["peak_gb"] for p in parts), "seconds": sum(p["seconds"] for p in parts)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**head, "parts": parts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
