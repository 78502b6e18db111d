"""What a run is, as plain data: the same whether Hydra composed it or a few lines of Python did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.ppo import PPO
from marlflow.base.errors import ConfigInvalid
from marlflow.flow.relocate import Where
from marlflow.policy.actor import EvaluationMode
from marlflow.policy.torso import MLP, TorsoConfig
from marlflow.runtime.spec import InferencePlacement, LearnerPlacement, Resources
from marlflow.sampling.mapping import Rule
from marlflow.sampling.matchmaking import Matchmaker

ENV_KEYS: Final = ("num_envs", "wrappers", "step_timeout_s")
"""What a configuration says of an environment beside its `_target_` and the arguments of that."""


class _Unsaid(int):
    """A number that nobody has said: one that comes with the environment's name takes its place."""


@dataclass(frozen=True)
class Env:
    """The environment: its factory, what it is called with, and wrappers.

    The factory is a callable, the import path of one, or the name of an environment that ships, as `env=` on the
    command line takes it: Env("simple_tag", {"num_good": 2}). That one comes with its own arguments, `num_envs` and
    wrappers, which are the innermost; what is given here is in their place or around them. Raises ConfigInvalid for a
    name that does not exist.

    `num_envs` is how many run at once, over all workers. `wrappers` are applied in order, the first innermost. A step
    or reset that takes longer than `step_timeout_s` (seconds) is given up; None is no limit.
    """

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()
    num_envs: int = _Unsaid(16)
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Looks a name up."""
        num_envs: int = self.num_envs
        if isinstance(self.factory, str) and "." not in self.factory:
            from marlflow.config.named_environments import named_environment

            named = named_environment(self.factory, self.arguments)
            object.__setattr__(self, "factory", named.factory)
            object.__setattr__(self, "arguments", named.arguments)
            object.__setattr__(self, "wrappers", (*named.wrappers, *self.wrappers))
            num_envs = named.num_envs if isinstance(num_envs, _Unsaid) else num_envs
        if isinstance(num_envs, _Unsaid):
            num_envs = int(num_envs)
        object.__setattr__(self, "num_envs", num_envs)


@dataclass(frozen=True)
class PolicyStop:
    """When a learner's plan ends, while the others go on; None is never. Its policies then act at their last version.

    `agent_steps` are those of all its policies together; `return_mean` is what each of them has to reach.
    """

    agent_steps: int | None = None
    return_mean: float | None = None


@dataclass(frozen=True)
class PlacementOverrides:
    """What one learner takes, where that differs: None is as in the run's `placement.learners`."""

    num_learners: int | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] | None = None
    node: str | None = None
    replay: Literal["with_learner", "own"] | None = None
    device: str | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    stages: Mapping[str, Where] | None = None


@dataclass(frozen=True)
class RunPlacement:
    """What the processes of a run take, on how many machines.

    `learners` is what each learner takes that does not say otherwise. `shared_gpus` is how many GPUs
    the learners share in equal fractions, instead of `learners.num_gpus` for each. With `inference` one actor acts for
    all workers, in batches. `spread` sends the processes to as many machines as possible, instead of as few.
    """

    learners: LearnerPlacement = field(default_factory=LearnerPlacement)
    shared_gpus: float | None = None
    inference: InferencePlacement | None = None
    spread: bool = False


@dataclass(frozen=True)
class OfflineData:
    """Recorded rows that a policy learns from: those of `policy` in a folder of records, each `passes` times.

    `policy` None is that of its own name, or if there is only one, that one.
    """

    folder: str
    policy: str | None = None
    passes: int = 1


@dataclass(frozen=True)
class Record:
    """Which rows are recorded: those of `policies` (None: all that learn), in `folder` (None: `record` in the run's).

    All rollout workers have to see the folder.
    """

    policies: Sequence[str] | None = None
    folder: str | None = None


@dataclass(frozen=True)
class Policy:
    """A policy: what it learns with, what its networks look like, and what its processes take.

    It learns alone, by a learner of its own name, unless a LearnerConfig lists it. `algorithm` None is PPO, or where a
    LearnerConfig lists it, the algorithm of that. `queue_fragments` is how many fragments may wait for its plan; None:
    two rounds. With `experience` it learns from what was recorded instead of what it plays; its plan ends when that
    ends.
    """

    algorithm: Algorithm | None = None
    model: TorsoConfig = field(default_factory=MLP)
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)
    queue_fragments: int | None = None
    experience: OfflineData | None = None

    @property
    def acts_by(self) -> Algorithm:
        """Its algorithm; PPO where none is said."""
        return PPO() if self.algorithm is None else self.algorithm


@dataclass(frozen=True)
class LearnerConfig:
    """What learns several policies at once, or one under another name: `policies`, which have no algorithm then.

    `queue_fragments` is how many fragments may wait for its plan; None is two rounds.
    """

    policies: Sequence[str]
    algorithm: Algorithm
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)
    queue_fragments: int | None = None


@dataclass(frozen=True)
class Rollouts:
    """Rollout workers: how many, how many env steps each collects at a time (over all its envs), and their pace.

    `lockstep`: all of them in rounds, each after on-policy learners are done with the one before. `overlap`: a round is
    collected during learning. `asynchronous`: each worker goes on at once, and a round is what one of them made.
    """

    num_workers: int = 2
    fragment_env_steps: int = 400
    pace: Literal["lockstep", "overlap", "asynchronous"] = "lockstep"
    placement: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Stop:
    """When a run ends; any of them ends it.

    `policies` maps a policy to the `return_mean` it has to reach; all of them together are one condition. `time_s`
    (seconds) has room for the last evaluation, and cuts a round short. `grace_period_s` is how long a running round may
    take to finish when the run is interrupted, and a step or reset of an environment, or the last evaluation, when
    `time_s` is over.
    """

    env_steps: int | None = None
    time_s: float | None = None
    policies: Mapping[str, float] = field(default_factory=dict)
    grace_period_s: float = 30.0


@dataclass(frozen=True)
class Faults:
    """How much may go wrong before a run ends, with a checkpoint and an error.

    Episodes that an environment broke, each of which costs its rows that were not yet delivered: `env_errors` raised or
    broke PettingZoo's contract, `env_hangs` took longer than `env.step_timeout_s`. Processes that died and were
    replaced: `workers_lost`, `learners_lost`, `replays_lost`. `updates_skipped`: optimizer steps that were not taken
    because the gradient was not finite. `checkpoints_failed`: checkpoints that could not be written; `reports_failed`:
    writes to metrics.jsonl, TensorBoard events and drawings that failed; `records_failed`: times that recorded rows
    could not be written, which are written later. `closes_failed`: environments whose `close()` raised, or took too
    long.
    """

    env_errors: int = 0
    env_hangs: int = 0
    workers_lost: int = 100
    learners_lost: int = 20
    replays_lost: int = 20
    updates_skipped: int = 100
    checkpoints_failed: int = 3
    reports_failed: int = 10
    records_failed: int = 3
    closes_failed: int = 100


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run, for `resume`: everything, every how many env steps (None: only at the end).

    The first checkpoint is taken after the first round, so that there soon is something to go on from.
    The newest `keep` stay, and besides the one in which the figure `best` of the metrics record was highest. `replay`
    says whether the replays' rows are kept. Running episodes are played again on resume, those longer than
    `replay_max_env_steps` begin anew.
    """

    every_env_steps: int | None = 50_000
    keep: int = 2
    best: str | None = None
    replay: Literal["rows", "none"] = "rows"
    replay_max_env_steps: int = 10_000


@dataclass(frozen=True)
class Evaluation:
    """Episodes apart from training: every how many env steps, how many, and how the policies act in them.

    The first evaluation comes after the first round, and one at the end of the run.

    `final_episodes` are played at the end of the run, None: as many as `episodes`. 0 episodes: no evaluation.
    `greedy`: the most likely action, or the mean. `sampled`: a draw from the distribution that a policy has learned,
    without exploration noise; where actions have to be mixed, as in rock-paper-scissors, only this says how a policy
    plays. `opponents`: names of policies, or `random`. Each policy that learns then has `episodes` of its own, in which
    it takes its seats in turn, and each opponent in turn takes all others, rounded up so that each of these pairings
    has as many; None: all policies play as in training.
    """

    every_env_steps: int = 50_000
    episodes: int = 20
    final_episodes: int | None = None
    mode: EvaluationMode = "greedy"
    opponents: Sequence[str] | None = None

    @property
    def episodes_at_the_end(self) -> int:
        """The number of episodes of the evaluation at the end of a run."""
        return self.episodes if self.final_episodes is None else self.final_episodes

    @property
    def is_wanted(self) -> bool:
        """Whether any episode is played, during the run or at its end."""
        return self.episodes > 0 or self.episodes_at_the_end > 0


@dataclass(frozen=True)
class Log:
    """What is said and kept, every how many env steps."""

    every_env_steps: int = 10_000
    console: Literal["auto", "live", "plain", "none"] = "auto"
    jsonl: bool = True
    tensorboard: bool = True
    trace: bool = False


@dataclass(frozen=True)
class RuntimeConfig:
    """Where it all runs: `inline` (one process, one thread) or `ray`, which may join a cluster at `address`.

    A Ray that is started for the run holds rows and weights in `object_store_bytes` of memory; None leaves that to Ray.
    It listens on loopback only; `node_ip_address` is the address of this machine by which others are to reach it.
    """

    name: Literal["inline", "ray"] = "ray"
    address: str | None = None
    object_store_bytes: int | None = None
    node_ip_address: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A run. `mapping` says who plays whom: rules, or a matchmaker, which deals each episode.

    Without rules the policy of a group's name plays that group, and `default_policy` the rest. `learners` has those
    that learn several policies at once; each other policy learns alone.
    """

    env: Env
    policies: Mapping[str, Policy] = field(default_factory=dict)
    mapping: Sequence[Rule] | Matchmaker | None = None
    default_policy: Policy = field(default_factory=Policy)
    rollouts: Rollouts = field(default_factory=Rollouts)
    placement: RunPlacement = field(default_factory=RunPlacement)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    stop: Stop = field(default_factory=lambda: Stop(env_steps=100_000))
    evaluation: Evaluation = field(default_factory=Evaluation)
    faults: Faults = field(default_factory=Faults)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: Log = field(default_factory=Log)
    record: Record | None = None
    seed: int = 0
    name: str = "experiment"
    objective: str | None = None
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigInvalid for what is of another kind altogether: the likely slips of the pen."""
        from marlflow.config.wrong_types import other_kinds

        if problems := list(other_kinds(self.env, self.policies, self.default_policy, self.mapping)):
            raise ConfigInvalid(problems)

    def resolved(self) -> Experiment:
        """The same experiment in which each policy has its algorithm: its own, its learner's, or PPO."""
        own = {name: learner.algorithm for learner in self.learners.values() for name in learner.policies}
        policies = {name: replace(one, algorithm=own.get(name, one.acts_by)) for name, one in self.policies.items()}
        default = replace(self.default_policy, algorithm=self.default_policy.acts_by)
        return replace(self, policies=policies, default_policy=default)

    def learner(self, name: str) -> LearnerConfig | Policy:
        """What is said of a learner: as one of `learners`, or as the policy that learns alone."""
        return self.learners.get(name) or self.policies.get(name, self.default_policy)

    def all_learners(self) -> Iterator[tuple[str, Algorithm, PlacementOverrides]]:
        """Path, algorithm and placement of all that may learn: policies that learn alone, and `learners`."""
        members = {name for learner in self.learners.values() for name in learner.policies}
        for name, policy in self.policies.items():
            if name not in members:
                yield f"policies.{name}", policy.acts_by, policy.placement
        yield "default_policy", self.default_policy.acts_by, self.default_policy.placement
        for name, learner in self.learners.items():
            yield f"learners.{name}", learner.algorithm, learner.placement

    def path_of_learner(self, name: str) -> str:
        """Where that is said in a configuration."""
        section = "learners" if name in self.learners else "policies" if name in self.policies else None
        return "default_policy" if section is None else f"{section}.{name}"
