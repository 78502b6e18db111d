"""The learner of one policy or of several: parameters, an update loop and a gradient exchange, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch

from marlflow.base.batch import Array, Transitions
from marlflow.base.items import Gradients, Update, Weights
from marlflow.base.serialization import Tree
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Place
from marlflow.learner.compute import ON_CPU, Compute, tensors_on
from marlflow.learner.distributed.collective import Collective
from marlflow.learner.distributed.followers import LeaderAndFollowers
from marlflow.learner.distributed.replicas import AllShardsExchange, ReplicaExchange
from marlflow.learner.gradient_exchange import GradientExchange, ProcessGroup, SingleProcess
from marlflow.learner.initial_priorities import chunked_priorities
from marlflow.learner.loss import LossFunction
from marlflow.learner.loss_groups import LossGroup, loss_groups, noise_width
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.parameters import COUNTS, LearnerParameters
from marlflow.learner.saved_state import check_state, publishing
from marlflow.learner.update_job import UpdateRequest
from marlflow.learner.update_loop import UpdateLoop
from marlflow.learner.update_report import gradients_of, step_report, update_report
from marlflow.learner.value_chunks import chunked_values
from marlflow.policy.normalized import observers
from marlflow.policy.tensors import as_tensor

LearnsOn: TypeAlias = Literal["learner", "workers"]

_EXCHANGES: Mapping[LearnsOn, tuple[GradientExchange, Callable[[Collective, Any], ProcessGroup]]] = {
    "learner": (SingleProcess(), LeaderAndFollowers),
    "workers": (AllShardsExchange(), ReplicaExchange),
}
"""The exchange of a learner that is in no group, and what makes its exchange in one."""


class TorchLearner:
    """Learns on minibatches: alone in this process, or in a group of processes with the same parameters.

    `policies` are those that it trains; without them the one of its name. `module` has an `actor`, or `actors` by
    policy, whose parameters are published, and a `critic` if its values are asked for. `trains_on` is
    the type of item that the losses are for: one loss for all parameters, or several loss groups. With `target`, a
    frozen copy of the module is kept for the losses, and renewed by `sync_target`. `place` is None for a learner in
    this process. `scheduled` has the settings that were last scheduled, by name; `stale_rows_dropped` counts the rows
    dropped as too old since the last update, which reports them.

    In a group, a learner that `learns_on` "learner" leads others, which follow it and are asked nothing else:

    address = learner.lead(world_size=2, host="10.0.0.1"), and once they follow: learner.meet()
    other.follow(address, rank=1, world_size=2)    # in another process, on a learner made alike

    A learner that `learns_on` "workers" is one of several replicas, each with rows of its own; whatever one of them is
    asked, all have to be asked. One that is in no group stands for all of them, and is given a ShardedBatch.
    """

    def __init__(  # noqa: PLR0913  all but four have defaults
        self,
        name: str,
        module: Any,
        losses: LossFunction | Sequence[LossGroup],
        *,
        trains_on: type,
        learning_rate: float,
        policies: Sequence[str] = (),
        max_grad_norm: float = float("inf"),
        optimizer: Optimizer = Adam(),
        seed: int = 0,
        compute: Compute = ON_CPU,
        target: bool = False,
        learns_on: LearnsOn = "learner",
    ) -> None:
        self.name, self.trains_on = name, trains_on
        self.place: Place | None = None
        self.scheduled: Mapping[str, float] = {}
        self.stale_rows_dropped = 0
        self.device, self._autocast = torch.device(compute.device), compute.autocast()
        self._tensor = tensors_on(self.device)
        groups = loss_groups(losses)
        if learns_on == "workers" and (noise_width(groups) or observers(module)):
            raise TypeError(
                f"learner {name!r} learns on the workers, where no learner sees all rows: its losses "
                "cannot have noise, nor its module running statistics"
            )
        self.parameters = LearnerParameters(
            module,
            tuple(policies) or (name,),
            groups,
            learning_rate=learning_rate,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            compute=compute,
            target=target,
        )
        self.loop = UpdateLoop(self.parameters, noise_width(groups), seed, compute)
        self._alone, self._in_group = _EXCHANGES[learns_on]
        self._group: ProcessGroup | None = None

    # -- parameters -------------------------------------------------------------------------------------------------

    @property
    def module(self) -> Any:
        """The module that learns."""
        return self.parameters.module

    @property
    def version(self) -> int:
        """The version of the parameters that were last published."""
        return self.parameters.version

    @property
    def published(self) -> Mapping[str, Weights]:
        """The weights of each policy that were last published, all under one version."""
        return self.parameters.published

    @property
    def updates(self) -> int:
        """Number of optimizer steps so far."""
        return self.parameters.updates

    @property
    def updates_when_published(self) -> int:
        """Number of optimizer steps when the parameters were last published."""
        return self.parameters.updates_when_published

    @property
    def updates_when_synced(self) -> int:
        """Number of optimizer steps when the target was last renewed."""
        return self.parameters.updates_when_synced

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """The critic's values of `obs` [N, ...], float32 [N]; a row's does not depend on the rows beside it."""
        columns = (obs,) if memory is None else (obs, memory)
        return chunked_values(self.module.critic, columns, self._tensor, self._autocast)

    def priorities(self, rows: Transitions) -> Array:
        """The priority of each of `rows` by the first loss, with the network as its own target, float32 [N]."""
        loss = self.parameters.groups[0].loss
        return chunked_priorities(loss, self.module, rows.columns_for_losses(), self._tensor)

    def publish(self) -> Mapping[str, Weights]:
        """The acting parameters under a new version."""
        return self.parameters.publish()

    def publish_all(self) -> None:
        """From now on publishes all parameters, the acting ones first, for stages that need the critic elsewhere."""
        self.parameters.publish_all()

    def resume_above(self, version: int) -> Mapping[str, Weights]:
        """Publishes under a version above `version`, the highest that a lost learner of this name may have used."""
        return self.parameters.resume_above(version)

    def sync_target(self, tau: float = 1.0) -> None:
        """Moves the target by the fraction `tau` of the way to the parameters; raises TypeError without a target."""
        if self.parameters.target_module is None:
            raise TypeError(f"learner {self.name!r} was made without a target")
        self.exchange.tell("sync_target", tau)
        self.parameters.sync_target(tau)

    def state(self) -> Tree:
        """Copies of all that an update depends on, but for settings: parameters, optimizers, random state, counts."""
        generator = self.loop.generator.get_state().numpy().copy()
        return {**self.parameters.state(), "generator": generator, "stale_rows_dropped": self.stale_rows_dropped}

    def load_state(self, state: Tree) -> None:
        """Restores `state`, bit for bit; raises CheckpointUnusable, and changes nothing, for another learner's."""
        state = publishing(state, len(self.parameters.published_flat))
        expected = {**self.parameters.like(state), "generator": self.loop.generator.get_state()}
        check_state(self.name, state, expected, (*COUNTS, "stale_rows_dropped"))
        self.exchange.tell("load_state", state)
        self.parameters.load_state(state)
        self.loop.generator.set_state(as_tensor(state["generator"]))
        self.stale_rows_dropped = state["stale_rows_dropped"]

    # -- updates ----------------------------------------------------------------------------------------------------

    def update(self, batch: TrainBatch, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch, in minibatches of at least `minibatch_agent_steps` rows.

        There are floor(rows / minibatch_agent_steps) minibatches of nearly equal size, and always at least one;
        without `minibatch_agent_steps` there is one. Sequences are dealt whole, nearly as many to each. `loss` of the
        result has the means of the loss's terms and of `grad_norm` over the steps taken; a step whose gradient is not
        finite is skipped and counted. Raises ActorLost if a process of the learner's group has ended.
        """
        request = UpdateRequest(batch, epochs, minibatch_agent_steps, self.updates, self.stale_rows_dropped)
        exchange = self.exchange
        with exchange.together():
            job = exchange.job(request)
            result = exchange.result(job, self.loop.run(job, exchange))
        return self._counted(update_report(self.name, self.version, job, result))

    def gradients(self, batch: TrainBatch) -> Gradients:
        """The gradient of the loss by all parameters, float32 [P], for another to `apply`; nothing changes here.

        All rows at once. Raises TypeError for a learner of several losses, of which each needs those before it changed.
        """
        if len(self.parameters.groups) > 1:
            raise TypeError(f"learner {self.name!r} has several losses, and no gradient of all at once")
        return gradients_of(batch, *self.loop.gradient(batch))

    def apply(self, gradients: Gradients) -> Update:
        """One optimizer step by gradients that were found elsewhere; none if they are of no rows, or not finite."""
        norm = None
        if gradients.rows:
            self.exchange.tell("apply", gradients.flat, gradients.rows)
            norm = self.loop.apply(gradients.flat)
        return self._counted(step_report(self.name, self.version, gradients, norm, self.stale_rows_dropped))

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes learning rates and `max_grad_norm`; the rest is for the losses, and for stages that look here."""
        self.exchange.tell("set_schedule", dict(values))
        self.scheduled = {**self.scheduled, **values}
        self.loop.set_schedule(values)

    def _counted(self, update: Update) -> Update:
        self.parameters.updates += update.updates
        self.stale_rows_dropped = 0
        return update

    # -- a group of processes ---------------------------------------------------------------------------------------

    @property
    def exchange(self) -> GradientExchange:
        """With whom gradients are shared now."""
        return self._alone if self._group is None else self._group

    def lead(self, world_size: int, host: str = "127.0.0.1") -> str:
        """The address at which `world_size` - 1 others may follow; `host` is this machine's as they know it.

        The port is one that is free. Whatever is asked first of this learner then waits for them, as `meet` does.
        """
        collective = Collective.open(self.name, host, world_size)
        self._group = self._in_group(collective, self)
        return collective.address

    def meet(self) -> None:
        """Waits for all others of the group, if there is one; raises ActorLost if they stay away."""
        if self._group is not None:
            self._group.meet()

    def follow(self, address: str, rank: int, world_size: int) -> None:
        """Joins the group that is led at `address`; returns when that ends, or for replicas when all have met.

        Raises ActorLost if a process of the group is lost.
        """
        self._group = group = self._in_group(Collective(self.name, address, rank, world_size), self)
        if group.serve():
            self._group = None

    def disband(self) -> None:
        """Leaves the group, and if it is led here, ends its followers' `follow`; this learner is then alone again."""
        if self._group is not None:
            self._group.disband()
            self._group = None
