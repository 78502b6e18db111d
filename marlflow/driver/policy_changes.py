"""Changes of policies that callbacks ask for: copies of other policies, and settings.

Population-based training exploits and explores by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree
from marlflow.driver.callbacks import Callbacks
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.service import Service
from marlflow.flow import Executor
from marlflow.observe.callback import ChangePolicy
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import RunSpec


class PolicyChanges(Service):
    """Makes the changes of policies that `callbacks` ask for while nothing is in flight; keeps the changed settings.

    A learner that copies another one has its parameters, target, optimizer states and what its parts keep, under the
    next version. Random numbers, schedules and the replay stay its own; other rows of before are dropped.
    """

    def __init__(
        self,
        spec: RunSpec,
        runtime: Runtime,
        executor: Executor,
        scheduler: Scheduler,
        callbacks: Callbacks,
        notify: Callable[[str], None],
    ) -> None:
        self._learner_of = {name: learner for name in spec.learning if (learner := spec.learner_of(name))}
        self._runtime, self._executor, self._scheduler = runtime, executor, scheduler
        self._callbacks, self._notify = callbacks, notify
        self._pending: list[ChangePolicy] = []
        # By learner.
        self._settings: dict[str, dict[str, float]] = {}

    def take(self) -> bool:
        """Take what callbacks have asked for; return whether there are changes to make."""
        self._pending += self._callbacks.take_changes()
        return bool(self._pending)

    def make(self) -> Sequence[str]:
        """Make the changes; return the policies that have copied another one. Raises ActorLost."""
        changes, self._pending = self._pending, []
        sources = {change.policy: change.source for change in changes if change.source is not None}
        named = {self._learner_of[name].name: self._learner_of[source].name for name, source in sources.items()}
        if named:
            self._runtime.copy_learners(named)
        for policy in sources:
            learner = self._learner_of[policy]
            # A replay's rows may be of any age; what waits for a batch is of a policy that is no more.
            if not learner.replays:
                self._executor.restart(learner.name)
        for change in changes:
            self._change(self._learner_of[change.policy].name, change.settings)
            news = [] if change.source is None else [f"continues as a copy of {change.source}"]
            settings = ", ".join(f"{name}={value:g}" for name, value in change.settings.items())
            self._notify(f"policy {change.policy} {', '.join([*news, settings] if settings else news)}")
        return [*sources]

    def _change(self, learner: str, settings: Mapping[str, float]) -> None:
        self._settings.setdefault(learner, {}).update(settings)
        self._scheduler.change(learner, settings)

    def state(self) -> Tree:
        if not self.take() and not self._settings:
            return None
        pending = [[change.policy, change.source, dict(change.settings)] for change in self._pending]
        return json.dumps({"pending": pending, "settings": self._settings})

    def load_state(self, state: Tree) -> None:
        try:
            read = json.loads(state)
            self._pending = [ChangePolicy(*change) for change in read["pending"]]
            for learner, settings in read["settings"].items():
                self._change(learner, {str(name): float(value) for name, value in settings.items()})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointUnusable([f"what callbacks have changed cannot be read: {error}"]) from error
