"""One run: train, look at source validation, keep the best, survive a kill, end as a model folder.

RUN/run.json                 the configuration; a run of another one is refused
RUN/metrics.jsonl            losses and validation, a line each
RUN/checkpoint.safetensors   all that the rest of the training depends on, while it lasts
RUN/config.json, model.safetensors, README.md    the model, once finished
RUN/last.safetensors         the weights of the last iteration, where another was better
"""

import json
import math
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sourceward.adapters import EnergyAdaptation
from sourceward.adapters.base import Adapted
from sourceward.errors import InputError
from sourceward.fit_settings import FitSettings
from sourceward.functional import Loss
from sourceward.model import CONFIG, Model, write_text
from sourceward.nn import Network
from sourceward.parallel import Processes
from sourceward.progress import Advance, progress_bar
from sourceward.settings import AdaptSettings
from sourceward.storage import load_tensors, save_tensors
from sourceward.train import CHECK_EVERY, Trainer

if TYPE_CHECKING:
    from sourceward.fitting import Task

CHECKPOINT, LAST = "checkpoint.safetensors", "last.safetensors"
LOCAL = ("generator", "replay.")
"""State that every process has of its own."""


class RunFolder:
    """The files of a run, and whose they are."""

    def __init__(self, path: Path, configuration: dict[str, Any]) -> None:
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        self.checkpoint, self.metrics = path / CHECKPOINT, path / "metrics.jsonl"

    def open(self) -> bool:
        """Whether the run has finished; what lies here of another run is refused."""
        file = self.path / "run.json"
        if not file.exists():
            others = [p.name for p in self.path.iterdir()] if self.path.is_dir() else []
            if others:
                raise InputError(
                    f"'{self.path}' holds other files ({', '.join(sorted(others)[:3])}). Name an empty or "
                    "new folder for the run."
                )
            return False
        finished = (self.path / CONFIG).exists()
        if finished or self.checkpoint.exists():  # before that there is nothing to lose
            self._compare(file)
        return finished

    def start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / "run.json", json.dumps(self.configuration, indent=2) + "\n")

    def _compare(self, file: Path) -> None:
        try:
            before = json.loads(file.read_text())
        except ValueError:
            raise InputError(f"'{file}' is damaged. Remove '{self.path}' to start anew.") from None
        changed = list(differences(before, self.configuration))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise InputError(
                f"'{self.path}' holds a run of another configuration: {'; '.join(changed[:3])}{more}. "
                "Name another folder, or remove this one."
            )

    def record(self, line: dict[str, Any]) -> None:
        with self.metrics.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def rewind(self, iteration: int) -> None:
        """Forget what was recorded after the checkpoint: it will be recorded again."""
        if self.metrics.exists():
            lines = [line for line in self.metrics.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["iteration"] <= iteration]
            write_text(self.metrics, "".join(f"{line}\n" for line in kept))


class Run:
    """The training of a task in a folder, from wherever it stands to the end."""

    def __init__(
        self,
        task: "Task",
        folder: RunFolder,
        settings: FitSettings,
        seed: int,
        processes: Processes,
        progress: bool | None,
        tensorboard: bool,
    ) -> None:
        self.task, self.folder, self.settings, self.processes = task, folder, settings, processes
        self.seed = seed
        self.best: dict[str, Tensor] = {}
        self.best_scores: dict[str, Any] = {}
        self.board = open_board(folder.path) if tensorboard and processes.is_main else None
        self.show = progress if processes.is_main else False
        self.every = settings.evaluate_every or max(1, settings.max_iter // 10)

    def finish(self, info: dict[str, Any]) -> Model:
        """Train to the end and write the model folder."""
        started = time.monotonic()
        outer = torch.get_rng_state()  # dropout inside backbones draws from the global generator
        self.trainer = self._trainer()
        if self.processes.is_main:
            self.folder.start()
            self.folder.rewind(self.trainer.iteration)
        self._loop()
        torch.set_rng_state(outer)
        task, network = self.task, self._current()
        last = {k: v.cpu().clone() for k, v in self._complete(network).state_dict().items()}
        if self.best_scores["iteration"] != self.trainer.iteration:
            network.load_state_dict(self.best)
            self._complete(network)
        info["metrics"] = self.best_scores | {"last_iteration": self.trainer.iteration}
        info["metrics"]["seconds"] = round(time.monotonic() - started, 1)
        network.backbone = network.backbone or task.still
        network.eval().requires_grad_(False).to(task.labels.device)
        data = task.dataset
        model = Model(network, data.classes, data.domain_names, self.settings.adapt(), info)
        if self.processes.is_main:
            if self.best_scores["iteration"] != self.trainer.iteration:
                extra = {} if task.still is None else task.still.state_dict(prefix="backbone.")
                save_tensors(self.folder.path / LAST, last | extra, {"iteration": self.trainer.iteration})
            model.save(self.folder.path)
            self.folder.checkpoint.unlink(missing_ok=True)
        self.processes.wait()
        return model

    def _trainer(self) -> Trainer:
        """A fresh one, or one that goes on from the checkpoint."""
        task, settings = self.task, self.settings
        task.network.reset_parameters(torch.Generator().manual_seed(self.seed))
        task.fit_scale()
        task.fit_centers(task.network)
        parts = settings.train(self.processes.count)
        options = {"processes": self.processes, "bf16": task.bf16}
        trainer = Trainer(task.network, settings.loop(), parts, self.seed, **options)  # type: ignore[arg-type]
        if self.folder.checkpoint.exists():
            self._restore(trainer)
        trainer.network.train()
        return trainer

    def _loop(self) -> None:
        trainer, task, total = self.trainer, self.task, self.settings.max_iter
        size = max(1, self.settings.batch_size // self.processes.count)
        feed = task.samples.feed(task.train, task.labels, size, trainer.seed, trainer.iteration)
        self.rows = size * len(task.train) * self.processes.count
        self.clock = time.monotonic()
        with progress_bar(total, "training", self.show) as advance:
            while trainer.iteration < total:
                loss = trainer.step(feed)
                done = trainer.iteration
                if done % CHECK_EVERY == 0 or done == total:
                    self._log(loss, advance)
                if done % self.every == 0 or done == total:
                    self._validate()
                if done % self.settings.checkpoint_every == 0 and done < total:
                    self._save()

    def _log(self, loss: Loss, advance: Advance) -> None:
        parts = dict(zip(Loss._fields, torch.stack(list(loss)).tolist()))
        parts["energy_gap"] = -parts["contrast"]
        now = time.monotonic()
        speed, self.clock = self.rows * CHECK_EVERY / (now - self.clock), now
        scores = self.best_scores
        val = f" val {100 * scores['unadapted']:.1f} -> {100 * scores['adapted']:.1f}" if scores else ""
        note = f"loss {parts['total']:.2f} classify {parts['classify']:.2f} gap {parts['energy_gap']:.3f}"
        advance(self.trainer.iteration, f"{note}{val} {speed:,.0f}/s")
        self._record({"loss": parts, "per_second": round(speed, 1)})

    def _validate(self) -> None:
        """Look at source validation; the best is kept, of equals the later."""
        network = self._current().eval()
        self.task.fit_centers(network)
        scores = validate(self.task, network, self.settings.adapt())
        scores["iteration"] = self.trainer.iteration
        if scores["adapted"] >= self.best_scores.get("adapted", -math.inf):
            self.best_scores = scores
            self.best = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
        self.trainer.network.train()
        self._record({"validation": scores})
        self.clock = time.monotonic()

    def _current(self) -> Network:
        return self.trainer.average if self.settings.average else self.trainer.network

    def _complete(self, network: Network) -> Network:
        """Class centres of the finished network, from every training sample."""
        if self.task.look is not None:
            self.task.fit_centers(network.eval(), everything=True)
        return network

    def _record(self, line: dict[str, Any]) -> None:
        if not self.processes.is_main:
            return
        self.folder.record({"iteration": self.trainer.iteration, **line})
        for name, value in (line.get("loss") or line.get("validation") or {}).items():
            if self.board is not None and isinstance(value, float):
                kind = "loss" if "loss" in line else "validation"
                self.board.add_scalar(f"{kind}/{name}", value, self.trainer.iteration)

    def _save(self) -> None:
        state = self.trainer.state_dict()
        for name in [name for name in state if name.startswith(LOCAL)]:
            state[name] = self.processes.gather(state[name], self.task.labels.device)
        state |= {f"best.{name}": value for name, value in self.best.items()}
        if self.processes.is_main:
            meta = {"iteration": self.trainer.iteration, "best": self.best_scores}
            save_tensors(self.folder.checkpoint, state, meta)

    def _restore(self, trainer: Trainer) -> None:
        state, meta = load_tensors(self.folder.checkpoint)
        for name in [name for name in state if name.startswith(LOCAL)]:
            state[name] = state[name][self.processes.rank].clone()
        prefix = "best."
        self.best = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        self.best_scores = meta["best"]
        rest = {k: v for k, v in state.items() if not k.startswith(prefix)}
        trainer.load_state_dict(rest, meta["iteration"])


def validate(task: "Task", network: Network, settings: AdaptSettings) -> dict[str, Any]:
    """Accuracy on source validation, with and without adaptation; the mean is over sources."""
    per_source = {}
    for name, rows in zip(task.dataset.domain_names, task.val):
        if rows.stop > rows.start:
            feature, label = task.features(network, rows)
            truth = label.cpu().numpy()

            def score(adapted: Adapted, truth: Any = truth) -> float:
                return float((adapted.probabilities.argmax(1) == truth).mean())

            per_source[name] = {
                "unadapted": score(EnergyAdaptation(AdaptSettings(num_steps=0))(network, feature)),
                "adapted": score(EnergyAdaptation(settings)(network, feature)),
                "samples": len(label),
            }
    means = {
        key: sum(scores[key] for scores in per_source.values()) / len(per_source)
        for key in ("unadapted", "adapted")
    }
    return {**means, "per_source": per_source}


def differences(before: Any, now: Any, path: str = "") -> Any:
    """What differs between two configurations, a phrase each.

    >>> list(differences({"a": {"b": 1}}, {"a": {"b": 2}}))
    ['a.b was 1, now 2']
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif before != now:
        yield f"{path} was {_short(before)}, now {_short(now)}"


def software() -> dict[str, str]:
    """Versions of what took part."""
    from sourceward import __version__

    return {"sourceward": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def open_board(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("TensorBoard is not installed: pip install 'sourceward[tensorboard]'.") from None
    return SummaryWriter(str(path / "tensorboard"))
