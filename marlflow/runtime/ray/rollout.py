"""The actor that hosts a rollout worker."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marlflow.base.items import Weights
from marlflow.base.kept import from_bytes, to_bytes
from marlflow.rollout.protocol import Matchup
from marlflow.runtime.ray.host import Raised, raised
from marlflow.runtime.ray.inference import asking_actors, fetched
from marlflow.runtime.spec import RunSpec

_PATIENCE = 2
"""After so many times the time that a step may take, nothing but the end of the process can interrupt it."""


class RolloutActor:
    """Hosts worker `number`; one that replaces a lost one begins its copies at `next_episodes`.

    It asks the actor `inference` for actions; None: it acts for itself.
    """

    def __init__(
        self, spec: RunSpec, number: int, next_episodes: Mapping[int, int] | None, inference: Any = None
    ) -> None:
        torch.set_num_threads(1)
        self._spec, self._number, self._next_episodes = spec, number, next_episodes
        self._inference = inference
        self._worker: Any = None

    def ready(self) -> Raised | None:
        """Opens the environments; what went wrong, if anything did."""
        try:
            actors = None if self._inference is None else asking_actors(self._spec, self._inference)
            timeout_s = self._spec.step_timeout_s
            end_process_after_s = None if timeout_s is None else _PATIENCE * timeout_s
            self._worker = self._spec.worker(
                self._number, actors, self._next_episodes, end_process_after_s, fetch=fetched
            )
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)
        gc.freeze()  # what is here now stays: no collection has to look at it again
        return None

    def collect(
        self,
        versions: Mapping[str, int],
        schedules: Mapping[str, Mapping[str, float]],
        matchups: Mapping[int, Sequence[Matchup]] | None,
        *flats: Any,
    ) -> Any:
        """A receipt, and a batch for each learning policy. `flats` are the weights of the policies in `versions`."""
        learning = self._spec.learning
        try:
            receipt, batches = self._worker.collect(self._spec.ticks, _weights(versions, flats), schedules, matchups)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            receipt, batches = raised(error), dict.fromkeys(learning)
        # Where nobody learns there is one return, which Ray does not want in a tuple.
        return (receipt, *(batches[name] for name in learning)) if learning else receipt

    def evaluate(
        self, episodes: Sequence[int], matchups: Sequence[Matchup] | None, versions: Mapping[str, int], *flats: Any
    ) -> Any:
        """Results of greedy episodes."""
        try:
            return self._worker.evaluate(episodes, _weights(versions, flats), matchups)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)

    def kept(self) -> Any:
        """Everything that the worker carries from one collect to the next, as bytes."""
        return np.frombuffer(to_bytes(self._worker.state()), np.uint8)

    def beginning(self, number: int, next_episodes: Mapping[int, int] | None) -> Any:
        """What another worker, which is not there, would carry when it begins."""
        worker = self._spec.worker(number, next_episodes=next_episodes)
        try:
            return np.frombuffer(to_bytes(worker.state()), np.uint8)
        finally:
            worker.close()

    def load(self, kept: Any, replay_max_env_steps: int) -> Any:
        """Goes on from what was kept of its copies; what could not be taken up again."""
        try:
            return tuple(self._worker.load_state(from_bytes(memoryview(kept)), replay_max_env_steps))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)


def _weights(versions: Mapping[str, int], flats: Sequence[Any]) -> dict[str, Weights]:
    return {name: Weights(version, flat) for (name, version), flat in zip(versions.items(), flats, strict=True)}
