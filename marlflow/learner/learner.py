"""The learner of one policy or several: parameters, update loop and gradient exchange."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.base.serialization import Tree
from marlflow.batches.batch import TrainBatch, Transitions
from marlflow.batches.critic_input import CriticInput
from marlflow.batches.items import Gradients, Update, Weights
from marlflow.flow import Place
from marlflow.learner.compiled_updates import GRADIENTS_APART, STEPS_AHEAD, Compile, CompiledUpdates
from marlflow.learner.compute import ON_CPU, Compute, tensors_on
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.distributed.followers import LeaderAndFollowers
from marlflow.learner.distributed.replicas import AllShardsExchange, ReplicaExchange
from marlflow.learner.extra_losses import ExtraLosses
from marlflow.learner.gradient_exchange import GradientExchange, ProcessGroup, SingleProcess
from marlflow.learner.loss import LossFunction
from marlflow.learner.loss_groups import LossGroup, as_groups, noise_width
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.parameters import COUNTS, LearnerParameters, check_state, with_published
from marlflow.learner.part_state import PartState, saved_name
from marlflow.learner.update_job import TargetUpdate, UpdateRequest, gradients_of, step_report, update_report
from marlflow.learner.update_loop import UpdateLoop
from marlflow.learner.value_chunks import ModuleCritic, chunked_priorities
from marlflow.policy.normalized import observers
from marlflow.policy.tensors import as_tensor

LearnsOn: TypeAlias = Literal["learner", "workers"]

_EXCHANGES: Mapping[LearnsOn, tuple[GradientExchange, Callable[[Collective, Any], ProcessGroup]]] = {
    "learner": (SingleProcess(), LeaderAndFollowers),
    "workers": (AllShardsExchange(), ReplicaExchange),
}
"""By `learns_on`: the exchange of a learner in one process, and the class of its exchange in a group."""


class TorchLearner:
    """Trains a PyTorch module on minibatches, in one process or data-parallel in several.

    `policies` defaults to the learner's `name`; `seats` has their agent slots, if known. `module` has an `actor`, or
    `actors` by policy, and a `critic` if `values` is called. `losses` is one loss or several loss groups, on batches of
    type `trains_on`. With `target`, they get a frozen copy of the module, updated by `sync_target`.
    `part_states` are the states of the algorithm's parts. `loss_groups` names the groups that stages may train
    separately, each with its own type of batch. `extra_losses` are added to the losses (see ExtraLoss). `place` None is
    this process.

    With `learns_on` "learner", a data-parallel group has a leader, used like a single process, and followers:

    address = learner.lead(world_size=2, host="10.0.0.1"); learner.meet()
    other.follow(address, rank=1, world_size=2)    # in another process, on a learner built the same way

    With "workers", a group has replicas, each with its own rows, and every method is collective: call it on all of
    them. Without a group, the learner takes a ShardedBatch and computes the same as replicas would.
    """

    place: Place | None = None

    def __init__(  # noqa: PLR0913  all but four have defaults
        self,
        name: str,
        module: Any,
        losses: LossFunction | Sequence[LossGroup],
        *,
        trains_on: type,
        learning_rate: float,
        policies: Sequence[str] = (),
        seats: Mapping[str, tuple[int, ...]] | None = None,
        max_grad_norm: float = float("inf"),
        optimizer: Optimizer = Adam(),
        seed: int = 0,
        compute: Compute = ON_CPU,
        target: bool = False,
        part_states: Sequence[PartState] = (),
        learns_on: LearnsOn = "learner",
        loss_groups: Mapping[str, type] = MappingProxyType({}),
        extra_losses: ExtraLosses = MappingProxyType({}),
        compile: Compile = False,
    ) -> None:
        self.name = name
        self.seats = dict(seats or {})
        self.trains_on = trains_on
        self.scheduled: Mapping[str, float] = {}
        self.stale_rows_dropped = 0
        self.seed = seed
        self.device, self._autocast = torch.device(compute.device), compute.autocast()
        self._tensor = tensors_on(self.device)
        groups = _verified_groups(name, module, losses, loss_groups, learns_on)
        own = [group.name for group in groups]
        self.loss_groups = {group: trains for group, trains in loss_groups.items() if group in own}
        self.parameters = LearnerParameters(
            module,
            tuple(policies) or (name,),
            groups,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            compute=compute,
            target=target,
            part_states=part_states,
            extra_losses=extra_losses,
        )
        compiled = CompiledUpdates(self.parameters, compile, compute.not_compiled)
        self._compiled = compiled
        self.loop = UpdateLoop(self.parameters, noise_width(groups), seed, compute, compiled)
        self._single, self._group_exchange = _EXCHANGES[learns_on]
        self._group: ProcessGroup | None = None

    # -- parameters -------------------------------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        return self.parameters.module

    @property
    def version(self) -> int:
        return self.parameters.version

    @property
    def published(self) -> Mapping[str, Weights]:
        return self.parameters.published

    @property
    def updates(self) -> int:
        return self.parameters.updates

    @property
    def updates_when_published(self) -> int:
        return self.parameters.updates_when_published

    @property
    def updates_when_synced(self) -> int:
        return self.parameters.updates_when_synced

    @property
    def critic_input(self) -> CriticInput | None:
        seen: CriticInput | None = getattr(self.module, "critic_input", None)
        return seen

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return self.estimator("critic").values(obs, memory)

    def estimator(self, name: str) -> ModuleCritic:
        """Return a function that estimates numbers of observations by the network's module `name`, as `values` does."""
        return ModuleCritic(getattr(self.module, name), self._tensor, self._autocast)

    def part_state(self, name: str) -> Any:
        """Return the state that a part of the algorithm keeps under this name; raises TypeError if there is none."""
        if name not in self.parameters.part_states:
            raise TypeError(f"learner {self.name!r} was made without a {name}")
        return self.parameters.part_states[name]

    def priorities(self, rows: Transitions) -> Array:
        loss = self.parameters.groups[0].loss
        return chunked_priorities(loss, self.module, rows.columns_for_losses(), self._tensor)

    def publish(self) -> Mapping[str, Weights]:
        return self.parameters.publish()

    def publish_all(self) -> None:
        """Publish all parameters from now on, for stages that need the critic in another process."""
        self.parameters.publish_all()

    def resume_above(self, version: int) -> Mapping[str, Weights]:
        """Publish under a version above `version`, the highest that a lost learner may have used."""
        return self.parameters.resume_above(version)

    def reset(self, start: TorchLearner) -> Mapping[str, Weights]:
        """Continue as `start`, a new learner of the same kind, and publish its parameters under the next version.

        Parameters, target, optimizers, random numbers and counts of updates are taken from `start`. The version
        increases, so that no version has two sets of parameters. Scheduled values stay.
        """
        return self._continue_with(start.state(), ("version", "stale_rows_dropped"))

    def copy(self, state: Tree) -> Mapping[str, Weights]:
        """Continue with the `state` of a learner of the same kind, and publish its parameters under the next version.

        Random numbers, counts of updates and scheduled values stay.
        """
        return self._continue_with(state, (*COUNTS, "generator", "stale_rows_dropped"))

    def _continue_with(self, state: Tree, kept: Sequence[str]) -> Mapping[str, Weights]:
        """Load `state` except the entries `kept`, and what parts keep over a restart."""
        own, parts = self.state(), self.parameters.part_states
        restarted = {saved_name(name): part.restarted(state[saved_name(name)]) for name, part in parts.items()}
        self.load_state({**state, **restarted, **{name: own[name] for name in kept}})
        return self.publish()

    def sync_target(self, tau: float = 1.0) -> None:
        """Move the target by the fraction `tau` toward the parameters; raises TypeError without a target."""
        if self.parameters.target_module is None:
            raise TypeError(f"learner {self.name!r} was made without a target")
        self.exchange.call_followers("sync_target", tau)
        self.parameters.sync_target(tau)

    def state(self) -> Tree:
        """Return copies of parameters, optimizer states, random state and counts; no settings."""
        generator = self.loop.generator.get_state().numpy().copy()
        return {**self.parameters.state(), "generator": generator, "stale_rows_dropped": self.stale_rows_dropped}

    def form(self) -> dict[str, object]:
        """Return by name what a state must have in common with its own to be restored: shapes, and values of buffers.

        A state has no buffers, since they never change; so another learner's have to be equal.
        """
        arrays = {name: (each.shape, str(each.dtype)) for name, each in self.state().items() if hasattr(each, "dtype")}
        buffers: Mapping[str, torch.Tensor] = dict(self.module.named_buffers())
        return {**arrays, **{name: (tuple(each.shape), each.tolist()) for name, each in buffers.items()}}

    def load_state(self, state: Tree) -> None:
        """Restore a state; if it does not fit, change nothing and raise CheckpointUnusable."""
        state = with_published(state, len(self.parameters.published_flat))
        expected = {**self.parameters.like(state), "generator": self.loop.generator.get_state()}
        check_state(self.name, state, expected, (*COUNTS, "stale_rows_dropped"))
        self.exchange.call_followers("load_state", state)
        self.parameters.load_state(state)
        self.loop.generator.set_state(as_tensor(state["generator"]))
        self.stale_rows_dropped = state["stale_rows_dropped"]

    # -- updates ----------------------------------------------------------------------------------------------------

    def update(
        self,
        batch: TrainBatch,
        epochs: int = 1,
        minibatch_agent_steps: int | None = None,
        policy: str | None = None,
        groups: Sequence[str] | None = None,
    ) -> Update:
        """Train on each row of `batch` once per epoch, in minibatches of at least `minibatch_agent_steps` rows.

        There are floor(rows / minibatch_agent_steps) minibatches, at least one, of nearly equal size; None means one.
        Sequences are not split. The report's `loss` has the means of the loss terms and of `grad_norm` over the steps
        taken; steps with a gradient that is not finite are skipped. With `policy`, only the loss groups of this policy,
        and the groups that belong to no policy, are trained; with `groups`, only these of the `loss_groups`. Raises
        ActorLost if a process has ended.
        """
        self._verify_groups(groups)
        only = None if groups is None else tuple(groups)
        request = UpdateRequest(
            batch, epochs, minibatch_agent_steps, self.updates, self.stale_rows_dropped, policy, only
        )
        exchange = self.exchange
        with exchange.leaving_on_error():
            job = exchange.job(request)
            result = exchange.result(job, self.loop.run(job, exchange))
        update = replace(update_report(self.name, self.version, job, result), **self._compiled.news()._asdict())
        if update.loss:
            for part, state in self.parameters.part_states.items():
                if clash := sorted(update.loss.keys() & state.terms.keys()):
                    problem = (
                        f"the state {part!r} of a part reports the term {clash[0]!r}, as another of its learner does"
                    )
                    raise InvalidInput([f"{problem}; rename one of them"])
                update = replace(update, loss={**update.loss, **state.terms})
        return self._count_updates(update)

    def update_each(
        self, batches: Sequence[TrainBatch], target: TargetUpdate, groups: Sequence[str] | None = None
    ) -> Sequence[Update]:
        """Train on all rows of each batch in turn, and update the target network when it is due after each.

        The same as `update` and `sync_target` in turn; batches that are alike in shape are trained on in one call of
        XLA, as far as updates are compiled (see `can_run_ahead`).
        """
        self._verify_groups(groups)
        only = None if groups is None else tuple(groups)
        reports: list[Update] = []
        for alike in _alike(batches):
            reports += self._update_ahead(alike, target, only) or [
                self._update_and_sync(batch, target, only) for batch in alike
            ]
        return reports

    @property
    def can_run_ahead(self) -> bool:
        """Whether `update_each` takes several batches at once from here on: updates are compiled in this process alone.

        Running statistics that change between updates, states of parts, and methods replaced by a subclass prevent it.
        """
        # Neither the class's nor the object's are replaced.
        called = (getattr(method, "__func__", None) for method in (self.update, self.sync_target))
        is_own = tuple(called) == (TorchLearner.update, TorchLearner.sync_target)
        alone = self.exchange.is_alone and not self.parameters.part_states
        return is_own and alone and not self.parameters.observers(None) and self._compiled.are_compiled(self.updates)

    def _update_ahead(
        self, batches: Sequence[TrainBatch], target: TargetUpdate, groups: tuple[str, ...] | None
    ) -> list[Update]:
        """Return the reports of updates that ran in one call; none if they cannot be compiled."""
        if not self.can_run_ahead or not all(batch.rows for batch in batches):
            return []
        exchange, before, dropped = self.exchange, self.updates, self.stale_rows_dropped
        with exchange.leaving_on_error():
            requests = [
                UpdateRequest(batch, 1, None, before, 0 if at else dropped, None, groups)
                for at, batch in enumerate(batches)
            ]
            jobs = [exchange.job(request) for request in requests]
            results = self.loop.run_ahead(jobs, target, exchange) or []
            reports = [
                update_report(self.name, self.version, job, exchange.result(job, result))
                for job, result in zip(jobs, results, strict=False)
            ]
        if reports:
            reports[0] = replace(reports[0], **self._compiled.news()._asdict())
        return [self._count_updates(report) for report in reports]

    def _update_and_sync(self, batch: TrainBatch, target: TargetUpdate, groups: tuple[str, ...] | None) -> Update:
        report = self.update(batch, groups=groups)
        if self.updates - self.updates_when_synced >= target.every:
            self.sync_target(target.tau)
        return report

    def _verify_groups(self, groups: Sequence[str] | None) -> None:
        if unknown := sorted({*(groups or ())} - {*self.loss_groups}):
            known = ", ".join(self.loss_groups) or "none"
            raise InvalidInput([f"learner {self.name!r} has no loss groups {unknown} to train apart, but {known}"])

    def gradients(self, batch: TrainBatch) -> Gradients:
        """Return the gradient, float32 [P], of the loss over all rows; raises TypeError with several losses."""
        # Each group's loss needs the groups before it already updated.
        if len(self.parameters.groups) > 1:
            raise TypeError(f"learner {self.name!r} has several losses, and no gradient of all at once")
        return gradients_of(batch, *self.loop.gradient(batch))

    def apply(self, gradients: Gradients) -> Update:
        """Take one optimizer step, unless the gradients are of no rows, or not finite."""
        norm = None
        if self._compiled.is_due(self.updates):
            self._compiled.refuse(GRADIENTS_APART)
        if gradients.rows:
            self.exchange.call_followers("apply", gradients.flat, gradients.rows)
            norm = self.loop.apply(gradients.flat)
        report = step_report(self.name, self.version, gradients, norm, self.stale_rows_dropped)
        return self._count_updates(replace(report, **self._compiled.news()._asdict()))

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set learning rates, `max_grad_norm` and loss coefficients; stages read `scheduled`."""
        self.exchange.call_followers("set_schedule", dict(values))
        self.scheduled = {**self.scheduled, **values}
        self.loop.set_schedule(values)

    def _count_updates(self, update: Update) -> Update:
        self.parameters.updates += update.updates
        self.stale_rows_dropped = 0
        return update

    # -- a group of processes ---------------------------------------------------------------------------------------

    def sum_over_shards(self, numbers: list[float]) -> list[float]:
        return self.exchange.sum_over_shards(numbers)

    @property
    def exchange(self) -> GradientExchange:
        """The gradient exchange in use."""
        return self._single if self._group is None else self._group

    def lead(self, world_size: int, host: str = "127.0.0.1") -> str:
        """Open a group on a free port and return its address; other processes reach this machine at `host`."""
        collective = Collective.open(self.name, host, world_size)
        self._group = self._group_exchange(collective, self)
        return collective.address

    def meet(self) -> None:
        """Wait until all processes of the group have joined; raises ActorLost after a timeout."""
        if self._group is not None:
            self._group.meet()

    def follow(self, address: str, rank: int, world_size: int) -> None:
        """Join the group at `address`; return when it ends, or for replicas when all have joined."""
        self._group = group = self._group_exchange(Collective(self.name, address, rank, world_size), self)
        if group.serve():
            self._group = None

    def disband(self) -> None:
        """Leave the group; called on the leader, end it."""
        if self._group is not None:
            self._group.disband()
            self._group = None


def _verified_groups(
    name: str,
    module: Any,
    losses: LossFunction | Sequence[LossGroup],
    separable: Mapping[str, type],
    learns_on: LearnsOn,
) -> Sequence[LossGroup]:
    groups = as_groups(losses)
    _verify_separable(name, groups, separable)
    _verify_replicable(name, module, groups, learns_on)
    return groups


def _verify_separable(name: str, groups: Sequence[LossGroup], apart: Mapping[str, type]) -> None:
    # Some of those declared may depend on settings.
    if apart and (undeclared := [group.name for group in groups if group.name not in apart]):
        raise TypeError(f"learner {name!r} declares the loss groups {', '.join(apart)}, and has {undeclared[0]} too")
    # Delays are counted in minibatches of the whole learner.
    if apart and (delayed := [group.name for group in groups if group.every > 1]):
        raise TypeError(f"learner {name!r} cannot train the delayed loss group {delayed[0]!r} apart from others")


def _verify_replicable(name: str, module: Any, groups: Sequence[LossGroup], learns_on: LearnsOn) -> None:
    # Noise and running statistics need one process that sees all rows.
    if learns_on == "workers" and (noise_width(groups) or observers(module)):
        raise TypeError(
            f"learner {name!r} learns on the workers, where no learner sees all rows: its losses "
            "cannot have noise, nor its module running statistics"
        )


def _alike(batches: Sequence[TrainBatch]) -> list[list[TrainBatch]]:
    """Return runs of batches, at most STEPS_AHEAD each, whose columns have the same shapes."""

    def shapes(batch: TrainBatch) -> Hashable:
        return tuple((name, column.shape, column.dtype) for name, column in batch.columns_for_losses().items())

    runs = [list(run) for _, run in groupby(batches, shapes)]
    return [run[at : at + STEPS_AHEAD] for run in runs for at in range(0, len(run), STEPS_AHEAD)]
