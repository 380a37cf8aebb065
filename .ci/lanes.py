"""Which of several steps runs when, for steps that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outcome import Step


class Lanes:
    """Takes steps in their order, each after those among them that it needs.

    Beside the lanes is one for patient steps. Each kind of lane takes the other's steps, too, once
    it has none of its own left.
    """

    def __init__(self, steps: Sequence[Step], run: Callable[[Step], None]) -> None:
        self._left = list(steps)
        self._open = {step.name for step in steps}  # not ended
        self._run = run
        self._changed = threading.Condition()
        self._failure: BaseException | None = None  # the first of the runner itself

    @contextmanager
    def running(self, lanes: int) -> Iterator[None]:
        """Begins; at the end all have ended, or after an exception those that had begun."""
        with ThreadPoolExecutor(max_workers=lanes + 1) as pool:
            workers = [pool.submit(self._work, False) for _ in range(lanes)]
            workers.append(pool.submit(self._work, True))
            try:
                yield
            except BaseException:
                with self._changed:
                    self._left.clear()
                    self._changed.notify_all()
                raise
            for worker in workers:
                worker.result()

    def wait_for(self, step: Step) -> None:
        """Until it has ended. Raises what ended a runner."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or step.name not in self._open)
            if self._failure:
                raise self._failure

    def _work(self, patient_alone: bool) -> None:
        while (step := self._take(patient_alone)) is not None:
            try:
                self._run(step)
            except BaseException as failure:
                with self._changed:
                    self._failure = self._failure or failure
                raise
            finally:
                with self._changed:
                    self._open.discard(step.name)
                    self._changed.notify_all()

    def _take(self, patient_alone: bool) -> Step | None:
        """The next step of a lane, once there is one; None if there is none any more."""
        with self._changed:
            while True:
                mine = self._mine(patient_alone)
                ready = [step for step in mine if self._open.isdisjoint(step.needs)]
                if ready:
                    step = min(ready, key=lambda one: one.patient)
                    self._left.remove(step)
                    return step
                if not mine:
                    return None
                self._changed.wait()

    def _mine(self, patient_alone: bool) -> list[Step]:
        """What a lane may take: one for patient steps leaves others alone while there are such."""
        if patient_alone and (patient := [step for step in self._left if step.patient]):
            return patient
        return self._left
