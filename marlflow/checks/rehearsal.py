"""Run users' networks and operators on two rows, to find errors before a run.

An actor makes the rows from arbitrary observations; then each operator of the plan processes them, Learn and Publish
included, on the CPU of this process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Final, cast

import numpy as np
import torch
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import JointAlgorithm, LearningAlgorithm, TorchAlgorithm
from marlflow.algorithms.info_columns import info_columns
from marlflow.base.errors import StageFailed, WeightsMismatch
from marlflow.batches.items import Fragment, JointFragment, Packed
from marlflow.checks.rehearsed_loss import RehearsedLoss
from marlflow.config.plans import divided_among, learner_plan
from marlflow.config.policy_assignment import subject_of
from marlflow.env.episode_location import raised
from marlflow.env.spaces_only import SpacesOnlyEnv, observation_rows
from marlflow.flow import OperatorRaised, Traits, source
from marlflow.flow.rehearsal import FailedStage, rehearse
from marlflow.flow.traits import type_name
from marlflow.learner.extra_losses import CheckedLoss
from marlflow.learner.loss_groups import actors_of
from marlflow.learner.value_chunks import in_evaluation_mode
from marlflow.policy.actor import Actor, NetworkActor, memory_shape_of
from marlflow.policy.adapted import AdaptingActor
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.tensors import as_tensor
from marlflow.policy.torso import build_torso
from marlflow.policy.warmup import network_of
from marlflow.replay.protocol import Replay
from marlflow.runtime.inline import InlineReplicasPlace
from marlflow.runtime.protocol import RunComponents, make_round
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.protocol import Request

# One row is not enough: batch normalization, for example, fails on it.
_ROWS: Final = 2
# For operators that need more rows, such as clustering; batches of a run have hundreds.
_SECOND_TRY_ROWS: Final = 256

_AGENT: Final = "agent"
_OURS: Final = {"marlflow", "torch", "numpy", "builtins"}


def rehearsal_problems(spec: RunSpec, state_space: gym.Box | None = None) -> Iterator[str]:
    """Yield a problem for each learner whose network or plan fails on rows of its spaces.

    Learners without users' code are skipped. `state_space` is the space of the environment's global state.
    """
    with _restored_random_state():
        for learner in spec.learners.values():
            if not _is_users(learner.algorithm) and not any(_is_users(policy.model) for policy in learner.policies):
                continue
            # Rows of other policies are of the same spaces, so its own will do.
            learner = replace(learner, others=())  # noqa: PLW2901
            problem = _problem(spec, learner, state_space, _ROWS)
            # A failure on two rows may be due to their number, so it is no problem if more rows succeed.
            if problem is not None and _problem(spec, learner, state_space, _SECOND_TRY_ROWS) is not None:
                yield f"{subject_of(learner)}: {problem}"


def _is_users(part: Any) -> bool:
    if isinstance(part, Mapping):
        return any(map(_is_users, part.values()))
    made_by = part if isinstance(part, type) or hasattr(part, "__qualname__") else type(part)
    if made_by.__module__.partition(".")[0] not in _OURS:
        return True
    return (
        is_dataclass(part)
        and not isinstance(part, type)
        and any(_is_users(getattr(part, member.name)) for member in fields(part))
    )


def _problem(spec: RunSpec, learner: LearnerSpec, state_space: gym.Box | None, rows: int) -> str | None:
    alone = _single_learner_run(spec, learner, state_space, rows)
    try:
        model_problems = (
            problem for policy in learner.policies if (problem := _model_problem(policy, rows)) is not None
        )
        return next(model_problems, None) or _plan_problem(alone, alone.learners[learner.name])
    except MemoryError:
        # The run may be for a larger machine.
        return None


def _model_problem(policy: PolicySpec, rows: int) -> str | None:
    model = policy.model
    if not _is_users(model) or isinstance(model, RecurrentTorsoConfig):
        return None
    torso, features = build_torso(policy.spaces, model, torch.Generator().manual_seed(0))
    obs = observation_rows(policy.spaces, rows)
    expected = f"features [N, {features}] of obs [N{''.join(f', {size}' for size in obs.shape[1:])}] in {obs.dtype}"
    subject = f"the network of {type(model).__name__} is to make {expected}"
    before = _buffers(torso)
    output, error = _output_of(torso, as_tensor(obs))
    if error is not None:
        # The most frequent cause is an integer dtype, such as uint8 pixels.
        cured = obs.dtype != np.float32 and _output_of(torso, as_tensor(obs).float())[1] is None
        remedy = "; the dtype is the space's own, so let it begin with obs.float()" if cured else ""
        return f"{subject}, and cannot{remedy}: {raised(error)}"
    if not isinstance(output, torch.Tensor):
        return f"{subject}, and makes a {type(output).__name__}"
    if output.shape != (rows, features) or not output.is_floating_point():
        dtype = str(output.dtype).removeprefix("torch.")
        return (
            f"{subject}, and makes {list(output.shape)} in {dtype} of {rows} rows; build() returns the network and "
            "how many features it makes of a row"
        )
    torso.eval()
    _, error = _output_of(torso, as_tensor(obs[:1]))
    if error is not None:
        return f"{subject}, and cannot of one row, which is all that one environment has: {raised(error)}"
    return _changed_buffer(torso, before)


def _output_of(torso: Any, obs: torch.Tensor) -> tuple[Any, Exception | None]:
    try:
        with torch.no_grad():
            return torso(obs), None
    except Exception as error:  # noqa: BLE001  a network of the user's may raise anything
        return None, error


def _plan_problem(alone: RunSpec, learner: LearnerSpec) -> str | None:
    try:
        parts = _components(learner)
    except Exception as error:  # noqa: BLE001  an algorithm of the user's may raise anything
        return f"its learner cannot be made: {raised(error)}"
    module = _network(parts, learner)
    before = _buffers(module)
    # Observations sampled from their spaces do not follow each other as they do in ArCHer's environments.
    if isinstance(learner.algorithm, TorchAlgorithm) and learner.algorithm.plan_needs_environment:
        return None
    if (problem := _actor_problem(learner, module, parts)) is not None:
        return problem
    try:
        fragments = _fragments(alone, parts)
    except StageFailed as failure:
        return f"stage {failure.stage!r} of its plan, on the rollout workers, breaks: {_reason(failure)}"
    except Exception as error:  # noqa: BLE001  a network of the user's may raise anything
        seen = " and ".join(str(policy.spaces.observation) for policy in learner.policies)
        return f"it cannot act on observations of {seen}: {raised(error)}"
    kind = JointFragment if learner.is_joint else Fragment
    experience = source(iter(fragments).__next__, name="experience", traits=Traits(emits=kind))
    broken = rehearse(learner_plan(experience, learner, parts), experience)
    return _changed_buffer(module, before) if broken is None else _stage_problem(broken, alone)


def _actor_problem(learner: LearnerSpec, module: torch.nn.Module, parts: RunComponents) -> str | None:
    """Return why workers would not act by the networks that learn, where a class overrides `network` alone."""
    algorithm = learner.algorithm
    if not isinstance(algorithm, LearningAlgorithm | JointAlgorithm):
        return None
    kinds = type(algorithm).__mro__
    made_by, acts_by = (next(one for one in kinds if name in vars(one)) for name in ("network", "actor"))
    if kinds.index(made_by) >= kinds.index(acts_by) or not _is_users(made_by):
        return None
    learning, published = actors_of(module, [policy.name for policy in learner.policies]), parts.published()
    for policy in learner.policies:
        acting, own = network_of(policy.actor()), network_of(cast("Actor", learning[policy.name]))
        if not (isinstance(acting, NetworkActor) and isinstance(own, NetworkActor)):
            continue
        obs = observation_rows(policy.spaces, _ROWS)
        try:
            # A critic's parameters may follow.
            acting.load_flat(published[policy.name].flat[: acting.flat().size])
            acts_alike = _are_alike(_outputs(own, obs), _outputs(acting, obs))
        except WeightsMismatch:
            acts_alike = False
        except Exception:  # noqa: BLE001  the rehearsal raises it again, and reports it
            continue
        if acts_alike:
            continue
        return (
            f"{made_by.__name__}.network makes other networks than {acts_by.__name__}.actor, by which the workers act; "
            "override actor(spaces, model, seed) as well"
        )
    return None


def _outputs(actor: NetworkActor, obs: Any) -> torch.Tensor:
    shape = memory_shape_of(actor)
    memory = None if shape is None else torch.zeros(len(obs), *shape)
    # A network may draw random numbers, also when it acts.
    torch.manual_seed(0)
    with torch.no_grad(), in_evaluation_mode(actor):
        return actor.outputs(as_tensor(obs), memory)[0]


def _are_alike(outputs: torch.Tensor, others: torch.Tensor) -> bool:
    return outputs.shape == others.shape and torch.allclose(outputs, others, rtol=1e-3, atol=1e-6, equal_nan=True)


def _network(parts: RunComponents, learner: LearnerSpec) -> torch.nn.Module:
    made: Any = parts.learners[learner.name]
    module: torch.nn.Module = made.module
    return module


def _buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def _changed_buffer(module: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> str | None:
    changed = [name for name, buffer in module.named_buffers() if not torch.equal(buffer, before[name])]
    if not changed:
        return None
    return (
        f"its network changes the buffer {changed[0]}, and buffers are neither saved nor sent to the workers; make it "
        "an nn.Parameter with requires_grad=False, and change it in a method observe(self, columns) of its module, "
        "which is called after each minibatch; or use model=mlp with normalize_observations=true"
    )


def _single_learner_run(spec: RunSpec, learner: LearnerSpec, state_space: gym.Box | None, rows: int) -> RunSpec:
    if learner.is_joint:
        learner = _with_own_seats(learner)
    # A joint learner needs all its agents; for others one of each policy will do.
    seated = [policy for policy in learner.policies for _ in (policy.spaces.seats if learner.is_joint else ()) or (0,)]
    agents = {f"{_AGENT}_{number}": policy for number, policy in enumerate(seated)}
    columns = info_columns({policy.name: (policy.algorithm, policy.columns) for policy in learner.policies}).in_rows
    spaces, keys = {agent: policy.spaces for agent, policy in agents.items()}, tuple(column.key for column in columns)
    return RunSpec(
        policies={policy.name: policy for policy in learner.policies},
        learners={learner.name: learner},
        mapping={agent: policy.name for agent, policy in agents.items()},
        make_env=partial(SpacesOnlyEnv, spaces, state_space, keys),
        num_envs=rows,
        num_workers=1,
        fragment_env_steps=rows,
        seed=spec.seed,
    )


def _with_own_seats(learner: LearnerSpec) -> LearnerSpec:
    """Return the learner with seats for its agents alone: the first of an environment without other agents."""
    policies, first = [], 0
    for policy in learner.policies:
        stop = first + len(policy.spaces.seats)
        policies.append(replace(policy, spaces=replace(policy.spaces, seats=tuple(range(first, stop)))))
        first = max(stop, first + 1)
    return replace(learner, policies=tuple(policies))


def _components(spec: LearnerSpec) -> RunComponents:
    spec = replace(spec, placement=replace(spec.placement, device="cpu"))
    learner, place = spec.learner(), InlinePlace("learner")
    for group in learner.parameters.groups:
        # Delayed losses are tried, too.
        group.every = 1
        group.loss = RehearsedLoss(group.loss)
        group.extra_losses = [CheckedLoss(extra) for extra in group.extra_losses]
    learner.place = InlineReplicasPlace(1) if spec.on_workers else place
    replays: dict[str, Replay] = {}
    if spec.replays:
        # One replay is used for all shards, so that none is empty when a batch is drawn from it.
        replay = spec.replay()
        replay.place = InlinePlace("replay") if spec.replays_apart else place
        replays = dict.fromkeys(spec.replays, replay)
    no_workers: Any = None
    return RunComponents(no_workers, {spec.name: learner}, replays)


def _fragments(alone: RunSpec, parts: RunComponents) -> list[Fragment]:
    worker = alone.worker(0)
    actors = [policy.actor() for policy in alone.policies.values()]
    ticks = max(1 + actor.inner_steps if isinstance(actor, AdaptingActor) else 1 for actor in actors)
    weights = parts.published()
    schedules = {name: policy.algorithm.schedules(0) for name, policy in alone.policies.items()}
    try:
        receipt, batches = worker.collect(ticks, Request(0, weights, schedules))
    finally:
        worker.close()
    return [fragment for _, fragment in divided_among(alone.learners.values())(make_round(0, [receipt], [batches]))]


def _stage_problem(broken: FailedStage, alone: RunSpec) -> str:
    failure, call = broken.failure, broken.call
    reason = _reason(failure)
    where = f"stage {failure.stage!r} of its plan"
    if isinstance(broken.given, Packed | Fragment) and (call.at is None or call.at.place is None):
        taken = call.traits.accepts
        as_type = "" if taken is Any else f" as a {type_name(taken)}"
        return (
            f"{where} has no place, so it runs on the driver, where rows are not opened, and it wants them{as_type}; "
            f"give it one with .then(..., at=learner): {reason}"
        )
    whose = "this policy's" if len(alone.policies) == 1 else "its policies'"
    return f"{where} breaks on {alone.num_envs} rows of {whose} spaces: {reason}"


def _reason(failure: StageFailed) -> str:
    cause = failure.__cause__ or failure
    # It says what a stage did that raised nothing itself.
    return str(cause) if isinstance(cause, OperatorRaised) else raised(cause)


@contextmanager
def _restored_random_state() -> Iterator[None]:
    """Restore the global random states and the number of torch threads on exit."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  what users may draw from
    threads = torch.get_num_threads()
    # With two rows, one thread is faster than several that wait for each other.
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
