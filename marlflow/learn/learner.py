"""The learner of one policy: owns its parameters, optimiser and loss, and turns batches into versions of weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.errors import ActorLost
from marlflow.base.items import Update, Weights
from marlflow.base.kept import Tree
from marlflow.flow import Place
from marlflow.learn.chunks import value_chunks
from marlflow.learn.collective import Collective
from marlflow.learn.compute import ON_CPU, Compute, tensors_on
from marlflow.learn.flat import FlatAdam, FlatParameters
from marlflow.learn.loss import LossFunction, LossTerms
from marlflow.learn.shares import priorities_of_all, share_sizes, shares, steps_of_all
from marlflow.learn.state import check_state, publishing
from marlflow.learn.steps import Learned, StepLog, Work, means, minibatches
from marlflow.policy.tensors import as_tensor

_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id"})
_TRANSITION_COLUMNS = tuple(field.name for field in fields(Transitions) if field.name not in _NOT_FOR_LOSSES)
_COUNTS = ("version", "updates", "updates_when_published", "updates_when_synced", "stale_rows_dropped")


class TorchLearner:
    """Learns with Adam on minibatches, in this process; or as one of a group of processes that learn together.

    `module` has an `actor`, whose parameters are what is published, and a `critic` if its values are asked for.
    `trains_on` is the type of item that `loss` is for. With `target`, a frozen copy of the module is kept for the loss,
    and renewed by `sync_target`. `place` is None for a learner in this process.

    In a group the leader is used as if it were alone, and what it learns is the same up to rounding:

    address = learner.lead(world_size=2, host="10.0.0.1"), and once they follow: learner.meet()
    other.follow(address, rank=1, world_size=2)    # in another process, on a learner made alike, which does no more
    """

    def __init__(
        self,
        name: str,
        module: Any,
        loss: LossFunction,
        *,
        trains_on: type,
        learning_rate: float,
        max_grad_norm: float = float("inf"),
        adam_eps: float = 1e-8,
        seed: int = 0,
        compute: Compute = ON_CPU,
        target: bool = False,
    ) -> None:
        self.name, self.loss, self.trains_on = name, loss, trains_on
        self.place: Place | None = None
        self.version = self.updates = self.updates_when_published = self.updates_when_synced = 0
        self.stale_rows_dropped = 0
        self.device, self._autocast = torch.device(compute.device), compute.autocast()
        self._tensor = tensors_on(self.device)
        self.module: Any = compute.prepared(module)
        self.flat = FlatParameters(module, module.actor)
        self.optimiser = FlatAdam(self.flat, learning_rate, max_grad_norm, adam_eps)
        self.target_module: Any = None
        self._target_flat: FlatParameters | None = None
        if target:
            self.target_module, self._target_flat = _frozen_copy(self.module)
        self._generator = torch.Generator().manual_seed(seed)
        self._group: Collective | None = None
        self.published = Weights(0, self.flat.publish())

    def values(self, obs: Array) -> Array:
        """The critic's values of `obs` [N, ...], float32 [N]; a row's is the same whichever others it comes with."""
        with torch.inference_mode():
            chunks = [self._values(chunk).cpu().numpy() for chunk in value_chunks(obs)]
        return np.concatenate(chunks)[: len(obs)] if chunks else np.zeros(0, np.float32)

    def _values(self, obs: Array) -> Tensor:
        seen = self._tensor(obs)
        if self._autocast is None:
            found: Tensor = self.module.critic(seen)
            return found
        with self._autocast:
            found = self.module.critic(seen)
        return found.float()

    def update(self, batch: Batch | Transitions, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch, in minibatches of at least `minibatch_agent_steps` rows.

        There are floor(rows / minibatch_agent_steps) minibatches of nearly equal size, and always at least one;
        without `minibatch_agent_steps` there is one. `loss` of the result has the means of the loss's terms and of
        `grad_norm` over the steps taken; a step whose gradient is not finite is skipped and counted. Raises ActorLost
        if a process of the learner's group has ended.
        """
        columns = dict(_columns(batch))
        parts = 1 if minibatch_agent_steps is None else max(1, batch.rows // minibatch_agent_steps)
        work = Work(columns, batch.rows, epochs if batch.rows else 0, parts)
        learned = self._learn(work) if self._group is None else self._learn_in_group(self._group, work)
        return self._report(batch, epochs, means(learned.names, learned.steps), learned.priorities_by_row())

    def _learn(self, work: Work) -> Learned:
        tensors = {name: self._tensor(column) for name, column in work.columns.items()}
        # All of them before the first step: on a GPU nothing is then waited for between epochs.
        orders = [self._order(work.rows) if work.parts > 1 else None for _ in range(work.epochs)]
        log, order = StepLog(), None
        found: list[Tensor | None] = []
        for order in orders:
            found = [self._step(minibatch, log) for minibatch in minibatches(tensors, order, work.parts)]
        return Learned(log.names, log.steps(), [each for each in found if each is not None], order)

    def _order(self, rows: int) -> Tensor:
        return self._tensor(torch.randperm(rows, generator=self._generator).numpy())

    def _learn_in_group(self, group: Collective, work: Work) -> Learned:
        """Learns with the followers: what one learner would have found."""
        with group.staying():
            self._tell({"do": "update", **work._asdict()})
            own = self._learn(work)
            reports = group.reports()
        sizes = list(share_sizes(work.rows, work.parts, group.world_size))
        steps = steps_of_all([own.steps, *(report["steps"] for report in reports)], sizes * work.epochs)
        if not own.priorities:
            return own._replace(steps=steps)
        others = [self._tensor(report["priorities"]) for report in reports]
        return own._replace(steps=steps, priorities=priorities_of_all([torch.cat(own.priorities), *others], sizes))

    def _report(
        self,
        batch: Batch | Transitions,
        epochs: int,
        found: tuple[dict[str, float], int, int],
        priorities: Tensor | None,
    ) -> Update:
        loss, taken, skipped = found
        self.updates += taken
        dropped, self.stale_rows_dropped = self.stale_rows_dropped, 0
        version = batch.version if isinstance(batch, Transitions) else batch.columns["version"]
        return Update(
            policy=self.name,
            rows=round(batch.rows * epochs * taken / (taken + skipped)) if skipped else batch.rows * epochs,
            updates=taken,
            version=self.version,
            loss=loss,
            updates_skipped=skipped,
            staleness_mean=float(self.version - version.mean()) if version is not None and len(version) else 0.0,
            stale_rows_dropped=dropped,
            rows_carried=int(batch.segments["carried"].sum()) if isinstance(batch, Batch) else 0,
            priorities=None if priorities is None or skipped else priorities.cpu().numpy(),
            row_ids=batch.row_id if isinstance(batch, Transitions) else None,
        )

    def sync_target(self) -> None:
        """Copies the parameters into the target; raises TypeError if this learner has none."""
        if self._target_flat is None:
            raise TypeError(f"the learner of policy {self.name!r} was made without a target")
        self._tell({"do": "sync_target"})
        self._target_flat.load(self.flat.vector)
        self.updates_when_synced = self.updates

    def publish(self) -> Weights:
        """The acting parameters under a new version."""
        self.version += 1
        self.updates_when_published = self.updates
        self.published = Weights(self.version, self.flat.publish())
        return self.published

    def publish_all(self) -> None:
        """From here on publishes all parameters, the acting ones first, for stages that need the critic elsewhere."""
        self.flat.published = len(self.flat.vector)
        self.published = Weights(self.version, self.flat.publish())

    def resume_above(self, version: int) -> Weights:
        """The acting parameters under a version above `version`, all that another learner of this policy handed out."""
        self.version = max(self.version, version)
        return self.publish()

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `learning_rate`; the rest goes to the loss."""
        self._tell({"do": "set_schedule", "values": dict(values)})
        self.optimiser.learning_rate = values.get("learning_rate", self.optimiser.learning_rate)
        self.loss.set_schedule(values)

    def state(self) -> Tree:
        """Copies of parameters, the optimiser's moments, the target, the random state, counts and what is published.

        The learning rate and the loss's coefficients are the configuration's, and are not among them.
        """
        tensors = {name: tensor.cpu().numpy().copy() for name, tensor in self._tensors().items()}
        tensors["generator"] = self._generator.get_state().numpy().copy()
        tensors["published"] = self.published.flat  # not what is learned since: versions name one thing only
        return {**tensors, **{name: getattr(self, name) for name in _COUNTS}}

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`, bit for bit; of another learner it raises CheckpointUnusable, and changes nothing."""
        state, tensors = publishing(state, len(self.published.flat)), self._tensors()
        others = {"generator": self._generator.get_state(), "published": as_tensor(self.published.flat)}
        check_state(self.name, state, {**tensors, **others}, _COUNTS)
        self._tell({"do": "load_state", "state": state})
        for name, tensor in tensors.items():
            tensor.copy_(as_tensor(state[name]))
        self._generator.set_state(as_tensor(state["generator"]))
        for name in _COUNTS:
            setattr(self, name, state[name])
        self.published = Weights(self.version, state["published"])

    def lead(self, world_size: int, host: str = "127.0.0.1") -> str:
        """The address at which `world_size` - 1 others may follow this one; `host` is this machine's as they know it.

        The port is one that is free. Whatever is asked first of this learner then waits for them, as `meet` does.
        """
        self._group = Collective.open(self.name, host, world_size)
        return self._group.address

    def meet(self) -> None:
        """Waits for all followers, and gives them this learner's state; raises ActorLost if they stay away."""
        if self._group is not None and self._group.leads and not self._group.met:
            self._group.meet(self.device)
            self._group.send({"do": "load_state", "state": self.state()})

    def follow(self, address: str, rank: int, world_size: int) -> None:
        """Does as the leader does, until that one disbands the group; raises ActorLost if it, or another, is lost."""
        self._group = Collective(self.name, address, rank, world_size)
        self._group.meet(self.device)
        with self._group.staying():
            while (command := self._group.receive()) is not None:
                self._obey(self._group, command)
        self.disband()

    def disband(self) -> None:
        """Ends the group, and with it its followers' `follow`; this learner is alone again."""
        if self._group is not None:
            if self._group.leads and self._group.met:
                with contextlib.suppress(ActorLost):  # whoever is lost is not there to be told
                    self._group.send(None)
            self._group.leave()
            self._group = None

    def _tell(self, command: Tree) -> None:
        if self._group is not None and self._group.leads:
            self.meet()
            self._group.send(command)

    def _obey(self, group: Collective, command: Tree) -> None:
        if command["do"] == "update":
            own = self._learn(Work(command["columns"], command["rows"], command["epochs"], command["parts"]))
            priorities = torch.cat(own.priorities).cpu().numpy() if own.priorities else np.zeros(0, np.float32)
            group.report({"steps": own.steps, "priorities": priorities})
        elif command["do"] == "sync_target":
            self.sync_target()
        elif command["do"] == "set_schedule":
            self.set_schedule(command["values"])
        else:
            self.load_state(command["state"])

    def _tensors(self) -> dict[str, Tensor]:
        adam = self.optimiser
        own = {"vector": self.flat.vector, "moment_1": adam.moment_1, "moment_2": adam.moment_2, "steps": adam.steps}
        return own if self._target_flat is None else {**own, "target": self._target_flat.vector}

    @np.errstate(over="ignore", invalid="ignore")  # a step that is not finite is skipped and counted, not warned of
    def _step(self, minibatch: Mapping[str, Tensor], log: StepLog) -> Tensor | None:
        self.flat.gradient.zero_()
        found = self._gradient(minibatch) if self._group is None else self._gradient_of_group(self._group, minibatch)
        grad_norm = self.optimiser.step()
        if found is None:
            return None
        log.add(found.terms, grad_norm)
        return found.priorities

    def _gradient(self, minibatch: Mapping[str, Tensor]) -> LossTerms:
        if self._autocast is None:
            found = self.loss(self.module, self.target_module, minibatch)
        else:
            with self._autocast:
                found = self.loss(self.module, self.target_module, minibatch)
        if found.total is not None:
            found.total.backward()
        return found

    def _gradient_of_group(self, group: Collective, minibatch: Mapping[str, Tensor]) -> LossTerms | None:
        """The gradient of all rows; what the loss found for this process's share of them, None if that is empty."""
        rows, found = len(next(iter(minibatch.values()))), None
        share = shares(rows, group.world_size)[group.rank]
        if share.stop > share.start:
            found = self._gradient({name: column[share] for name, column in minibatch.items()})
            self.flat.gradient.mul_((share.stop - share.start) / rows)
        group.add_up(self.flat.gradient)
        return found


def _columns(batch: Batch | Transitions) -> Iterator[tuple[str, Array]]:
    if isinstance(batch, Batch):
        named = [(name, column) for name, column in batch.columns.items() if name not in _NOT_FOR_LOSSES]
    else:
        named = [(name, column) for name in _TRANSITION_COLUMNS if (column := getattr(batch, name)) is not None]
    for name, column in named:
        yield name, column.astype(np.float32) if column.dtype == np.float64 else column


def _frozen_copy(module: Any) -> tuple[Any, FlatParameters]:
    frozen = copy.deepcopy(module)
    flat = FlatParameters(frozen, frozen.actor)
    frozen.requires_grad_(False)
    return frozen, flat
