"""What a run is, as plain data: the same whether Hydra composed it or a few lines of Python did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.ppo import PPO
from marlflow.base.errors import ConfigInvalid
from marlflow.policy.torso import MLP, TorsoConfig
from marlflow.rollout.mapping import Rule
from marlflow.rollout.matchups import Matchmaker
from marlflow.runtime.spec import Placement


@dataclass(frozen=True)
class Env:
    """The environment: its factory (a callable, or the import path of one), what it is called with, and wrappers.

    `copies` is how many run at once, over all workers. `wrappers` are applied in order, the first innermost. A step or
    reset that takes longer than `step_timeout_s` (seconds) is given up; None is no limit.
    """

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()
    copies: int = 16
    step_timeout_s: float | None = None


@dataclass(frozen=True)
class PolicyStop:
    """When a policy's plan ends, while the others go on; None is never. Its policy then acts at its last version."""

    agent_steps: int | None = None
    return_mean: float | None = None


@dataclass(frozen=True)
class Policy:
    """A policy: what it learns with, what its networks look like, and what its processes take.

    `queue_fragments` is how many fragments may wait for its plan; None is two rounds.
    """

    algorithm: Algorithm = field(default_factory=PPO)
    model: TorsoConfig = field(default_factory=MLP)
    placement: Placement = field(default_factory=Placement)
    stop: PolicyStop = field(default_factory=PolicyStop)
    queue_fragments: int | None = None


@dataclass(frozen=True)
class Rollouts:
    """Rollout workers: how many, how many env steps each collects at a time (over all its copies), and their pace."""

    num_workers: int = 2
    fragment_env_steps: int = 400
    pace: Literal["lockstep", "overlap"] = "lockstep"
    placement: Placement = field(default_factory=Placement)


@dataclass(frozen=True)
class Stop:
    """When a run ends; any of them ends it.

    `policies` maps a policy to the `return_mean` it has to reach; all of them together are one condition. `grace_s` is
    how long what is under way may take to finish when the run is interrupted.
    """

    env_steps: int | None = None
    time_s: float | None = None
    policies: Mapping[str, float] = field(default_factory=dict)
    grace_s: float = 30.0


@dataclass(frozen=True)
class Faults:
    """How many episodes an environment may break before the run ends; each costs its rows that were not yet delivered.

    `env_errors` raised or broke PettingZoo's contract, `env_hangs` took longer than `env.step_timeout_s`.
    """

    env_errors: int = 0
    env_hangs: int = 0


@dataclass(frozen=True)
class Evaluation:
    """Greedy episodes, apart from training: how many, every how many env steps; 0 episodes is none."""

    every_env_steps: int = 50_000
    episodes: int = 20


@dataclass(frozen=True)
class Log:
    """What is said and kept, every how many env steps."""

    every_env_steps: int = 10_000
    console: Literal["auto", "live", "plain", "none"] = "auto"
    jsonl: bool = True
    tensorboard: bool = True
    trace: bool = False


@dataclass(frozen=True)
class RuntimeChoice:
    """Where it all runs: `inline` (one process, one thread) or `ray`, which may join a cluster at `address`."""

    name: Literal["inline", "ray"] = "ray"
    address: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A run. `mapping` says who plays whom: rules, or a matchmaker, which deals each episode.

    Without rules the policy of a group's name plays that group, and `default_policy` the rest.
    """

    env: Env
    policies: Mapping[str, Policy] = field(default_factory=dict)
    mapping: Sequence[Rule] | Matchmaker | None = None
    default_policy: Policy = field(default_factory=Policy)
    rollouts: Rollouts = field(default_factory=Rollouts)
    runtime: RuntimeChoice = field(default_factory=RuntimeChoice)
    stop: Stop = field(default_factory=lambda: Stop(env_steps=100_000))
    evaluation: Evaluation = field(default_factory=Evaluation)
    faults: Faults = field(default_factory=Faults)
    log: Log = field(default_factory=Log)
    seed: int = 0
    name: str = "experiment"
    objective: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigInvalid for what is of another kind altogether: the likely slips of the pen."""
        if problems := list(_other_kinds(self.env, self.policies, self.mapping)):
            raise ConfigInvalid(problems)


def _other_kinds(env: Any, policies: Any, mapping: Any) -> Iterator[str]:
    if not isinstance(env, Env):
        yield f"env is {env!r}, not an Env; write Env(factory, arguments)"
    for name, policy in policies.items():
        if not isinstance(policy, Policy):
            yield f"policies[{name!r}] is {policy!r}, not a Policy; write Policy({type(policy).__name__}(...))"
    rules = isinstance(mapping, Sequence) and all(isinstance(rule, Rule) for rule in mapping)
    if isinstance(mapping, type) or not (mapping is None or rules or callable(mapping)):
        yield (
            f"mapping is {mapping!r}, neither a list of rules, such as [Rule('adversary_*', 'hunters'), ...], nor a "
            "matchmaker, such as RandomSeats(['hunters', 'prey'])"
        )
