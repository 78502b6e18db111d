"""The learner of one policy: owns its parameters, optimiser and loss, and turns batches into versions of weights."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array, Transitions
from marlflow.base.errors import ActorLost
from marlflow.base.items import Gradients, Update, Weights
from marlflow.base.kept import Tree
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Place
from marlflow.learn.chunks import value_chunks
from marlflow.learn.collective import Collective
from marlflow.learn.compute import ON_CPU, Compute, tensors_on
from marlflow.learn.flat import FlatParameters
from marlflow.learn.groups import LossGroup, OptimizerGroup, frozen_copy, loss_groups, noise_width, norm_of_all
from marlflow.learn.loss import LossFunction, LossTerms
from marlflow.learn.optimizer import Adam, Optimizer
from marlflow.learn.priorities import chunked_priorities
from marlflow.learn.reports import applied, gradients_of, report
from marlflow.learn.shares import priorities_of_all, share_sizes, shares, steps_of_all
from marlflow.learn.state import as_mapping, check_state, publishing
from marlflow.learn.steps import Learned, StepLog, Work, means, minibatches
from marlflow.policy.normalised import observers
from marlflow.policy.tensors import as_tensor

_COUNTS = ("version", "updates", "turns", "updates_when_published", "updates_when_synced", "stale_rows_dropped")


class TorchLearner:
    """Learns on minibatches, in this process; or as one of a group of processes that learn together.

    `module` has an `actor`, whose parameters are what is published, and a `critic` if its values are asked for.
    `trains_on` is the type of item that `loss` is for: one loss for all parameters, or several Parts. A loss that says
    `noise_per_row` is given a column `noise` of so many standard normal numbers for each row. With `target`, a frozen
    copy of the module is kept for the loss, and renewed by `sync_target`. `place` is None for a learner in this
    process. `scheduled` has the settings that were last scheduled, by name.

    In a group the leader is used as if it were alone, and what it learns is the same up to rounding:

    address = learner.lead(world_size=2, host="10.0.0.1"), and once they follow: learner.meet()
    other.follow(address, rank=1, world_size=2)    # in another process, on a learner made alike, which does no more
    """

    def __init__(
        self,
        name: str,
        module: Any,
        loss: LossFunction | Sequence[LossGroup],
        *,
        trains_on: type,
        learning_rate: float,
        max_grad_norm: float = float("inf"),
        optimizer: Optimizer = Adam(),
        seed: int = 0,
        compute: Compute = ON_CPU,
        target: bool = False,
    ) -> None:
        self.name, self.trains_on = name, trains_on
        self.place: Place | None = None
        self.version = self.updates = self.turns = self.updates_when_published = self.updates_when_synced = 0
        self.stale_rows_dropped = 0
        self.scheduled: Mapping[str, float] = {}
        self.device, self._autocast = torch.device(compute.device), compute.autocast()
        self._tensor = tensors_on(self.device)
        self.module: Any = compute.prepared(module)
        groups = loss_groups(loss)
        self.flat = FlatParameters(module, module.actor, [list(group.parameters(module)) for group in groups])
        self.groups = [
            OptimizerGroup(group, module, self.flat, optimizer, learning_rate, max_grad_norm) for group in groups
        ]
        self._noise_per_row, self._observers = noise_width(groups), observers(module)
        self.target_module: Any = None
        self._target_flat: FlatParameters | None = None
        if target:
            self.target_module, self._target_flat = frozen_copy(self.module, groups)
        self._generator = torch.Generator().manual_seed(seed)
        self._group: Collective | None = None
        self.published = Weights(0, self.flat.publish())

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """The critic's values of `obs` [N, ...], float32 [N]; a row's is the same whichever others it comes with."""
        seen = (obs,) if memory is None else (obs, memory)
        with torch.inference_mode():
            chunks = [self._values(chunk).cpu().numpy() for chunk in zip(*map(value_chunks, seen), strict=True)]
        return np.concatenate(chunks)[: len(obs)] if chunks else np.zeros(0, np.float32)

    def priorities(self, rows: Transitions) -> Array:
        """What the loss says of each of `rows` with the network as its own target, float32 [N]."""
        return chunked_priorities(self.groups[0].loss, self.module, rows.columns_for_losses(), self._tensor)

    def _values(self, chunk: Sequence[Array]) -> Tensor:
        seen = [self._tensor(column) for column in chunk]
        if self._autocast is None:
            found: Tensor = self.module.critic(*seen)
            return found
        with self._autocast:
            found = self.module.critic(*seen)
        return found.float()

    def update(self, batch: TrainBatch, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch, in minibatches of at least `minibatch_agent_steps` rows.

        There are floor(rows / minibatch_agent_steps) minibatches of nearly equal size, and always at least one;
        without `minibatch_agent_steps` there is one. Sequences are dealt whole, nearly as many to each. `loss` of the
        result has the means of the loss's terms and of `grad_norm` over the steps taken; a step whose gradient is not
        finite is skipped and counted. Raises ActorLost if a process of the learner's group has ended.
        """
        columns = batch.columns_for_losses()
        parts = 1 if minibatch_agent_steps is None else max(1, min(batch.count, batch.rows // minibatch_agent_steps))
        work = Work(columns, batch.count, epochs if batch.rows else 0, parts)
        learned = self._learn(work) if self._group is None else self._learn_in_group(self._group, work)
        return self._reported(report(batch, epochs, means(learned.names, learned.steps), learned.priorities_by_row()))

    def _reported(self, update: Update) -> Update:
        """The update under this learner's name and version, and what was dropped before it."""
        self.updates += update.updates
        self.turns = self.updates
        dropped, self.stale_rows_dropped = self.stale_rows_dropped, 0
        staleness = self.version - update.staleness_mean  # of a report: the mean version of its rows
        known = staleness if math.isfinite(staleness) else 0.0
        return replace(update, policy=self.name, version=self.version, stale_rows_dropped=dropped, staleness_mean=known)

    def gradients(self, batch: TrainBatch) -> Gradients:
        """The gradient of the loss by all parameters, float32 [P], for another to `apply`; nothing changes here.

        All rows at once. Raises TypeError for a learner of several parts, of which each needs those before it changed.
        """
        if len(self.groups) > 1:
            raise TypeError(f"the learner of policy {self.name!r} has several losses, and no gradient of all at once")
        self.flat.gradient.zero_()
        log = StepLog()
        if batch.rows:
            tensors = {name: self._tensor(column) for name, column in batch.columns_for_losses().items()}
            found = self._gradient(tensors | self._noise(batch.count), self.groups[0])
            log.add(found.terms, 0.0)
        terms = dict(zip(log.names, log.steps()[0], strict=True)) if batch.rows else {}
        return gradients_of(batch, self.flat.gradient.cpu().numpy().copy(), terms)

    def apply(self, gradients: Gradients) -> Update:
        """One optimiser step by gradients that were found elsewhere; none if they are of no rows, or not finite."""
        part = self.groups[0]
        if not gradients.rows:
            return self._reported(applied(gradients, None))
        self._tell({"do": "apply", "flat": gradients.flat, "rows": gradients.rows})
        self.flat.gradient.copy_(self._tensor(gradients.flat))
        norm = float(part.optimizer.step())
        self.turns += 1
        return self._reported(applied(gradients, norm))

    def _learn(self, work: Work) -> Learned:
        tensors = {name: self._tensor(column) for name, column in work.columns.items()}
        # All of them before the first step: on a GPU nothing is then waited for between epochs.
        drawn = [(self._order(work), self._noise(work.rows)) for _ in range(work.epochs)]
        log, order = StepLog(), None
        found: list[Tensor | None] = []
        for order, noise in drawn:
            found = [self._step(minibatch, log) for minibatch in minibatches(tensors | noise, order, work.parts)]
        steps = log.steps()
        if all(math.isfinite(step[-1]) for step in steps):  # else its rows are not fit to be learned from
            for observer in self._observers:
                observer.observe(tensors)
        return Learned(log.names, steps, [each for each in found if each is not None], order)

    def _order(self, work: Work) -> Tensor | None:
        if work.parts == 1:
            return None
        return self._tensor(torch.randperm(work.rows, generator=self._generator).numpy())

    def _noise(self, rows: int) -> dict[str, Tensor]:
        if not self._noise_per_row:
            return {}
        return {"noise": self._tensor(torch.randn(rows, self._noise_per_row, generator=self._generator).numpy())}

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

    def sync_target(self, tau: float = 1.0) -> None:
        """Moves the target by the share `tau` of the way to the parameters; raises TypeError if there is no target."""
        if self._target_flat is None:
            raise TypeError(f"the learner of policy {self.name!r} was made without a target")
        self._tell({"do": "sync_target", "tau": tau})
        self._target_flat.approach(self.flat.vector, tau)
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
        """Takes learning rates and `max_grad_norm`; the rest is for the losses, and for stages that look here."""
        self._tell({"do": "set_schedule", "values": dict(values)})
        self.scheduled = {**self.scheduled, **values}
        for part in self.groups:
            part.set_schedule(values)

    def state(self) -> Tree:
        """Copies of parameters, the optimisers' states, the target, the random state, counts and what is published.

        Learning rates and the losses' coefficients are the configuration's, and are not among them.
        """
        optimisers = {name: tensor for part in self.groups for name, tensor in part.state().items()}
        tensors = {name: tensor.cpu().numpy().copy() for name, tensor in (self._tensors() | optimisers).items()}
        tensors["generator"] = self._generator.get_state().numpy().copy()
        tensors["published"] = self.published.flat  # not what is learned since: versions name one thing only
        return {**tensors, **{name: getattr(self, name) for name in _COUNTS}}

    def load_state(self, state: Tree) -> None:
        """Goes on from `state`, bit for bit; of another learner it raises CheckpointUnusable, and changes nothing."""
        state, tensors = publishing(state, len(self.published.flat)), self._tensors()
        others = {"generator": self._generator.get_state(), "published": as_tensor(self.published.flat)}
        optimisers = {name: tensor for part in self.groups for name, tensor in part.like(as_mapping(state)).items()}
        check_state(self.name, state, {**tensors, **optimisers, **others}, _COUNTS)
        self._tell({"do": "load_state", "state": state})
        for name, tensor in tensors.items():
            tensor.copy_(as_tensor(state[name]))
        for part in self.groups:
            part.load_state(state)
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
        elif command["do"] == "apply":
            self.apply(Gradients(command["flat"], command["rows"]))
        elif command["do"] == "sync_target":
            self.sync_target(command["tau"])
        elif command["do"] == "set_schedule":
            self.set_schedule(command["values"])
        else:
            self.load_state(command["state"])

    def _tensors(self) -> dict[str, Tensor]:
        own = {"vector": self.flat.vector}
        return own if self._target_flat is None else {**own, "target": self._target_flat.vector}

    @np.errstate(over="ignore", invalid="ignore")  # a step that is not finite is skipped and counted, not warned of
    def _step(self, minibatch: Mapping[str, Tensor], log: StepLog) -> Tensor | None:
        """Every part's turn, one after the other; the priorities that the first of them found."""
        terms: dict[str, Any] | None = None  # none where this process of a group has no rows
        norms: list[Tensor | float] = []
        priorities, skipped = None, False
        for part in self.groups:
            if (self.turns + 1) % part.every:
                continue
            part.gradient.zero_()
            find = self._gradient if self._group is None else self._gradient_of_group
            found = find(minibatch, part)
            norms.append(part.optimizer.step())
            skipped = isinstance(norms[-1], float) and not math.isfinite(norms[-1])
            if found is not None:
                terms = {**(terms or {}), **found.terms}
                priorities = found.priorities if priorities is None else priorities
            if skipped:  # what the other parts would see is not what they are to learn from
                break
        self.turns += not skipped
        if terms is not None:
            log.add(terms, norm_of_all(norms))
        return priorities

    def _gradient(self, minibatch: Mapping[str, Tensor], part: OptimizerGroup) -> LossTerms:
        if self._autocast is None:
            return part.add_gradient(self.module, self.target_module, minibatch)
        with self._autocast:
            return part.add_gradient(self.module, self.target_module, minibatch)

    def _gradient_of_group(self, minibatch: Mapping[str, Tensor], part: OptimizerGroup) -> LossTerms | None:
        """The gradient of all rows; what the loss found for this process's share of them, None if that is empty."""
        group, found = cast(Collective, self._group), None
        rows = len(next(iter(minibatch.values())))
        share = shares(rows, group.world_size)[group.rank]
        if share.stop > share.start:
            found = self._gradient({name: column[share] for name, column in minibatch.items()}, part)
            part.gradient.mul_((share.stop - share.start) / rows)
        group.add_up(part.gradient)
        return found
