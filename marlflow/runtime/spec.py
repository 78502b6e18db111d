"""What a runtime is asked to set up: policies with their learners and replays, and rollout workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.random import key
from marlflow.base.spaces import Spaces
from marlflow.learn.learner import TorchLearner
from marlflow.policy.actor import Actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.rollout.worker import RolloutWorker


@dataclass(frozen=True, slots=True)
class Placement:
    """What a process takes of the cluster.

    `num_cpus` is a reservation and may be a fraction; None means an equal share of what is free. `node` is the address
    of a machine that it must be on. `replay` says whether a replay lives in its learner's process or in one of its own
    (then a prioritised draw may go out before the last one's priorities are back).
    """

    num_learners: int = 1
    num_cpus: float | None = None
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    node: str | None = None
    replay: Literal["with_learner", "own"] = "with_learner"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One policy: what it is, without any of its parts built."""

    name: str
    algorithm: Algorithm
    model: TorsoConfig
    spaces: Spaces
    seed: int
    placement: Placement = Placement()

    @property
    def learns(self) -> bool:
        """Whether it has a learner and a plan."""
        return self.algorithm.learns

    def actor(self) -> Actor:
        """A new actor, with parameters that are replaced by the learner's before it acts."""
        return self.algorithm.actor(self.spaces, self.model, self._seed("actor"))

    def learner(self) -> TorchLearner:
        """A new learner."""
        device = "cuda" if self.placement.num_gpus > 0 else "cpu"
        return self.algorithm.learner(self.name, self.spaces, self.model, self._seed("learner"), device)

    def replay(self) -> ReplayBuffer:
        """A new replay, of an algorithm that remembers."""
        return self.algorithm.replay(self.name, self._seed("replay"))

    def _seed(self, what: str) -> int:
        return key(self.seed, *what.encode(), *self.name.encode()) >> 33


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A whole run: policies, who plays which agent, the environment, and how much of it at once.

    `mapping` says which policy plays which agent: a dict, or a callable that also knows agents that are not there yet;
    None: each episode is played by the matchup that is dealt for it. A worker goes on after `tolerated_faults` episodes
    that its environments broke. A step or reset that takes longer than `step_timeout_s` (seconds) is such a fault.
    """

    policies: Mapping[str, PolicySpec]
    mapping: Mapping[str, str] | Callable[[str], str | None] | None
    make_env: Callable[[], Any]
    copies: int
    num_workers: int
    fragment_env_steps: int
    seed: int
    rollout_placement: Placement = Placement()
    tolerated_faults: int = 0
    step_timeout_s: float | None = None

    @property
    def with_state(self) -> tuple[str, ...]:
        """The policies whose rows are to have the environment's global state."""
        return tuple(name for name, policy in self.policies.items() if policy.algorithm.needs_state)

    @property
    def learning(self) -> tuple[str, ...]:
        """The policies that learn, in order."""
        return tuple(name for name, policy in self.policies.items() if policy.learns)

    def copies_of(self, worker: int) -> tuple[int, ...]:
        """The copies that a worker plays: every num_workers-th."""
        return tuple(range(worker, self.copies, self.num_workers))

    def worker(self, number: int) -> RolloutWorker:
        """A new worker, its environments open."""
        return RolloutWorker(
            self.make_env,
            self.copies_of(number),
            self.mapping,
            {name: policy.actor() for name, policy in self.policies.items()},
            seed=self.seed,
            worker=number,
            recorded=self.learning,
            spaces={name: policy.spaces for name, policy in self.policies.items()},
            with_state=self.with_state,
            tolerated_faults=self.tolerated_faults,
            step_timeout_s=self.step_timeout_s,
        )

    @property
    def ticks(self) -> int:
        """Env steps that each copy takes in a collect, so that a worker makes `fragment_env_steps` or a few more."""
        return -(-self.fragment_env_steps * self.num_workers // self.copies)
