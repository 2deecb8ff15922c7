"""`Batcher`: a bounded queue of samples, and one thread that predicts those which wait, together."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, NamedTuple


class Full(Exception):
    """The queue has no room, or the server is stopping."""


class Job(NamedTuple):
    item: Any
    answer: "Future[Any]"


class Batcher:
    """Predict samples in batches of whatever waits when the last batch is done: no sample waits for another.

    Args:
        predict: from items to one answer each; called in one thread alone.
        max_queue: samples that may wait.
        max_batch: samples of one call.

    >>> batcher = Batcher(lambda items: [2 * item for item in items], max_queue=8, max_batch=4)
    >>> [answer.result() for answer in batcher.submit([1, 2, 3])]
    [2, 4, 6]
    >>> batcher.stop()
    """

    def __init__(self, predict: Callable[[list[Any]], list[Any]], max_queue: int, max_batch: int) -> None:
        self.predict, self.max_queue, self.max_batch = predict, max_queue, max_batch
        self.waiting: deque[Job] = deque()
        self.changed, self.stopping = Condition(), False
        self.thread = Thread(target=self._run, name="predict", daemon=True)
        self.thread.start()

    def __len__(self) -> int:
        return len(self.waiting)

    def submit(self, items: Sequence[Any]) -> "list[Future[Any]]":
        """Queue all items or none; raises `Full`."""
        jobs = [Job(item, Future()) for item in items]
        with self.changed:
            if self.stopping or len(self.waiting) + len(jobs) > self.max_queue:
                raise Full
            self.waiting.extend(jobs)
            self.changed.notify()
        return [job.answer for job in jobs]

    def stop(self) -> None:
        """Refuse new samples, answer those that wait, and end the thread."""
        with self.changed:
            self.stopping = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while True:
            with self.changed:
                while not self.waiting and not self.stopping:
                    self.changed.wait()
                if not self.waiting:
                    return
                count = min(len(self.waiting), self.max_batch)
                taken = [self.waiting.popleft() for _ in range(count)]
            jobs = [job for job in taken if job.answer.set_running_or_notify_cancel()]
            if jobs:
                self._answer(jobs)

    def _answer(self, jobs: list[Job]) -> None:
        try:
            answers = self.predict([job.item for job in jobs])
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # one sample that fails takes no other with it
                self._answer([job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
