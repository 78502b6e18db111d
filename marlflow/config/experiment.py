"""Describe a run as plain data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.from_run import FromRun
from marlflow.algorithms.ppo import PPO
from marlflow.base.errors import ConfigInvalid
from marlflow.base.ranges import (
    Count,
    CountOrZero,
    CPUs,
    CustomResources,
    EpisodeCount,
    Finite,
    GPUs,
    Processes,
    Range,
    Seed,
    SomeShare,
    Steps,
    StepsOrZero,
)
from marlflow.base.schedules import OrSchedule
from marlflow.config.comments import files
from marlflow.env.simulators.pettingzoo_registry import TARGET as PETTINGZOO
from marlflow.flow.relocate import Where
from marlflow.league.league import League
from marlflow.league.modes import LeagueMode
from marlflow.matchmaking.matchmakers import Matchmaker, MatchmakerFunction, matchmaker_name
from marlflow.observe.callback import Callback
from marlflow.policy.actor import AskedMode
from marlflow.policy.torso import MLP, TorsoConfig
from marlflow.runtime.spec import InferencePlacement, LearnerPlacement, Resources
from marlflow.sampling.mapping import Rule


class _UnsetNumEnvs(int):
    """Mark the default of `num_envs`, which the number of a shipped environment replaces."""


@dataclass(frozen=True)
class Env:
    """Specify the environment: its factory, its arguments and its wrappers.

    `factory` is a callable, an import path, an id of PettingZoo such as "butterfly/pistonball-v6", or the name of a
    shipped environment: Env("simple_tag", {"num_good": 2}). For a name, the given arguments replace its defaults, and
    the given wrappers go around its own. Raises ConfigInvalid for an unknown name.

    `num_envs` environments run over all workers. `wrappers` are applied in order, the first innermost. `step_timeout_s`
    (seconds) limits a step or reset; None is no limit. `batched`: whether a worker steps all of its environments by one
    call, for which the environment needs a batched version; "auto": if it has one.
    """

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Callable[[Any], Any]] = ()
    num_envs: Annotated[int, Range(1, 10**6)] = _UnsetNumEnvs(16)
    step_timeout_s: Annotated[float, Range(0.001, 1e6, unit=" seconds")] | None = None
    batched: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        is_set = not isinstance(self.num_envs, _UnsetNumEnvs)
        values: dict[str, Any] = {"num_envs": self.num_envs if is_set else int(self.num_envs)}
        if isinstance(self.factory, str) and "/" in self.factory:
            values |= {"factory": PETTINGZOO, "arguments": {"id": self.factory, **self.arguments}}
        # A name without a dot is that of a shipped environment; an import path always has one.
        elif isinstance(self.factory, str) and "." not in self.factory:
            from marlflow.config.named_environments import named_environment  # late: it imports this module

            shipped = named_environment(self.factory, self.arguments)
            values |= {"factory": shipped.factory, "arguments": shipped.arguments}
            values |= {"wrappers": (*shipped.wrappers, *self.wrappers)}
            values |= {} if is_set else {"num_envs": shipped.num_envs}
        self.__dict__.update(values)  # not by assignment, because the class is frozen


@dataclass(frozen=True)
class PolicyStop:
    """Set when one learner's plan ends while others continue; None is never.

    Its policies then act with their last weights. `agent_steps` is their total; each has to reach `return_mean`.
    """

    agent_steps: Steps | None = None
    return_mean: Finite | None = None


@dataclass(frozen=True)
class PlacementOverrides:
    """Override the run's `placement.learners` for one learner; None keeps the run's value."""

    num_learners: Processes | None = None
    num_cpus: CPUs | None = None
    num_gpus: GPUs | None = None
    resources: Mapping[str, CustomResources] | None = None
    node: str | None = None
    replay: Literal["with_learner", "own"] | None = None
    device: str | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    stages: Mapping[str, Where] | None = None


@dataclass(frozen=True)
class RunPlacement:
    """Set the resources of a run's processes.

    `learners` is the default of every learner. `shared_gpus` are shared by all learners in equal fractions, instead of
    `learners.num_gpus` each. With `inference`, one actor acts for all workers. `spread` uses the most machines.
    """

    learners: LearnerPlacement = field(default_factory=LearnerPlacement)
    shared_gpus: Annotated[float, Range(0.0, 1e5, above=True)] | None = None
    inference: InferencePlacement | None = None
    spread: bool = False


@dataclass(frozen=True)
class OfflineData:
    """Name the recorded rows that a policy learns from: `passes` times those in `folder`.

    `policy` None is the recorded policy of the same name, or the only one.
    """

    folder: str
    policy: str | None = None
    passes: Count = 1


@dataclass(frozen=True)
class Record:
    """Choose the rows that workers write to files.

    `policies` None: all that learn. `folder` None: `record` in the run's; every worker needs access.
    """

    policies: Sequence[str] | None = None
    folder: str | None = None


@dataclass(frozen=True)
class InfoMetric:
    """A number in agents' infos as a figure of episodes, beside returns: InfoMetric("battle_won").

    `info` is its key (`a.b` in a dict in infos). `at`: "end" is its value at the agent's end, "sum" the sum over the
    episode's env steps, in Parallel environments.
    """

    info: str
    at: Literal["sum", "end"] = "end"


@dataclass(frozen=True)
class Policy:
    """Set a policy's algorithm, networks and learner.

    It has a learner of its own name, unless a LearnerConfig lists it. `algorithm` None is PPO, or that LearnerConfig's.
    `queue_fragments` may wait for its plan; None: two rounds. `experience`: recorded rows. `init`: a policy
    of another run to begin as. `learns_from`: policies whose rows it learns from; None: itself, or as the league says.
    `columns`: numbers in infos that are columns of its rows; "credited": added up by the rules of rewards; "info": the
    last one since the decision. `reward_from`: numbers in infos that are added to the rewards that its learner sees,
    each with a coefficient; the `credited` column is then in its rows too. Returns stay those of the environment.
    """

    algorithm: Algorithm | None = None
    model: TorsoConfig = field(default_factory=MLP)
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)
    queue_fragments: Count | None = None
    experience: OfflineData | None = None
    learns_from: Sequence[str] | None = None
    init: FromRun | None = None
    columns: Mapping[str, Literal["credited", "info"]] = field(default_factory=dict)
    reward_from: Mapping[str, OrSchedule[Finite]] = field(default_factory=dict)

    @property
    def row_columns(self) -> dict[str, Literal["credited", "info"]]:
        """Return `columns`, and a column of each number in `reward_from`."""
        return {**dict.fromkeys(self.reward_from, "credited"), **self.columns}

    @property
    def acts_by(self) -> Algorithm:
        """Return the policy's algorithm, PPO by default."""
        return PPO() if self.algorithm is None else self.algorithm


@dataclass(frozen=True)
class LearnerConfig:
    """Train several policies together, or one under another name.

    The `policies` must have no algorithm. `queue_fragments` may wait for the plan; None: two rounds.
    """

    policies: Sequence[str]
    algorithm: Algorithm
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)
    queue_fragments: Count | None = None


@dataclass(frozen=True)
class Rollouts:
    """Set the number of rollout workers, their fragments and their pace.

    `fragment_env_steps` are env steps of a worker at a time, over all its environments. `pace`: `lockstep` collects a
    round after on-policy learners have trained on the last one, `overlap` during learning; `asynchronous` workers do
    not wait for each other, and a round is one worker's. `compiled`: whether a worker's fragment is one compiled call;
    "auto": where the environment is a functional one and all policies can be compiled.
    """

    num_workers: Processes = 2
    fragment_env_steps: Steps = 400
    pace: Literal["lockstep", "overlap", "asynchronous"] = "lockstep"
    compiled: bool | Literal["auto"] = "auto"
    placement: Resources = field(default_factory=Resources)


@dataclass(frozen=True)
class Stop:
    """Set when a run ends: at the first condition that holds; None is never.

    `policies` maps policies to mean returns to reach, all together. `time_s` (seconds) includes the last evaluation and
    cuts rounds and updates short. `grace_period_s`: for a round after an interrupt; after `time_s`, for a step or the
    evaluation. Updates get a quarter of it, at most 5 s.
    """

    env_steps: Steps | None = None
    time_s: Annotated[float, Range(0.0, 1e9, above=True, unit=" seconds")] | None = None
    policies: Mapping[str, Finite] = field(default_factory=dict)
    grace_period_s: Annotated[float, Range(0.0, 1e6, unit=" seconds")] = 30.0


@dataclass(frozen=True)
class Faults:
    """Set how many faults of each kind a run tolerates; one more ends it with a checkpoint and an error.

    Broken episodes, whose undelivered rows are lost: `env_errors` (raised, or broke PettingZoo's contract), `env_hangs`
    (longer than `env.step_timeout_s`). Lost and replaced processes: `workers_lost`, `learners_lost`, `replays_lost`.
    `updates_skipped`: optimizer steps with a gradient that was not finite. Failed writes: `checkpoints_failed`,
    `reports_failed` (metrics.jsonl, TensorBoard, drawings), `records_failed` (recorded rows, written later).
    `closes_failed`: environments whose `close()` raised or took too long. `callbacks_failed`: None is any number.
    """

    env_errors: CountOrZero = 0
    env_hangs: CountOrZero = 0
    workers_lost: CountOrZero = 100
    learners_lost: CountOrZero = 20
    replays_lost: CountOrZero = 20
    updates_skipped: CountOrZero = 100
    checkpoints_failed: CountOrZero = 3
    reports_failed: CountOrZero = 10
    records_failed: CountOrZero = 3
    closes_failed: CountOrZero = 100
    callbacks_failed: CountOrZero | None = None


@dataclass(frozen=True)
class CheckpointConfig:
    """Set when checkpoints are written and which are retained.

    The first follows the first round, then one every `every_env_steps` (None: only at the end). The newest `keep` and
    the one with the highest metric `best` are retained. `replay` says whether replays' rows are saved. On resume,
    running episodes are replayed, or start over if longer than `replay_max_env_steps`.
    """

    every_env_steps: Steps | None = 50_000
    keep: Count = 2
    best: str | None = None
    replay: Literal["rows", "none"] = "rows"
    replay_max_env_steps: StepsOrZero = 10_000


@dataclass(frozen=True)
class Evaluation:
    """Set the evaluation episodes, which are separate from training.

    `episodes` are played after the first round and every `every_env_steps`, `final_episodes` at the end (None: as
    many). 0 is no evaluation. `mode` is `greedy` (the most likely action, or the mean), `sampled` (from the learned
    distribution, without exploration noise), or `as_learned`: for each policy what its algorithm learns, sampled from a
    distribution, greedy by values.

    `opponents` are names of policies, or `random`: each learning policy plays `episodes`, in each of its seats in turn,
    against each opponent in all others, rounded up to equally many per pairing. None: all play as in training.

    `time_share` is the part of the run's time that evaluation may take: fewer episodes are played where they would take
    longer (see `docs/concepts.md`). None: all are played, whatever they take.
    """

    every_env_steps: Steps = 50_000
    episodes: EpisodeCount = 20
    final_episodes: EpisodeCount | None = None
    mode: AskedMode = "as_learned"
    opponents: Sequence[str] | None = None
    time_share: SomeShare | None = 0.1

    @property
    def episodes_at_the_end(self) -> int:
        """Return the number of episodes at the end of a run."""
        return self.episodes if self.final_episodes is None else self.final_episodes

    @property
    def is_wanted(self) -> bool:
        """Return whether any episode is played, during the run or at its end."""
        return self.episodes > 0 or self.episodes_at_the_end > 0


@dataclass(frozen=True)
class Log:
    """Set where reports are written, and how often. `sinks` are further ones, such as WandbSink, by name."""

    every_env_steps: Steps = 10_000
    console: Literal["auto", "live", "plain", "none"] = "auto"
    jsonl: bool = True
    tensorboard: bool = True
    trace: bool = False
    sinks: Mapping[str, Callback | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RuntimeConfig:
    """Choose the runtime: `inline` (one process, one thread) or `ray`.

    `address` joins a Ray cluster: an address, `auto` for this machine's, `local` for none; None is RAY_ADDRESS, else
    none. A Ray started for the run has `object_store_bytes` for rows and weights (None: Ray's default) and serves Ray's
    `dashboard` if asked. It listens on loopback only, unless others connect to this machine's `node_ip_address`.
    """

    name: Literal["inline", "ray"] = "ray"
    address: str | None = None
    object_store_bytes: Annotated[int, Range(75 * 2**20, 2**50, shown="78643200 (75 MiB)")] | None = None
    node_ip_address: str | None = None
    dashboard: bool = False


@dataclass(frozen=True)
class Experiment:
    """Describe a whole run.

    `mapping` assigns policies to agents: rules, or a matchmaker for each episode. Without it a policy plays the group
    of its name, and `default_policy` all others. With a `league`, policies play each other and their snapshots.
    `learners` train several policies together; every other policy learns alone. `callbacks` observe the run, by name.
    `metrics`: numbers in infos that are figures of episodes, by name.
    """

    env: Env
    policies: Mapping[str, Policy] = field(default_factory=dict)
    mapping: Sequence[Rule] | MatchmakerFunction | None = None
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
    seed: Seed = 0
    name: str = "experiment"
    objective: str | None = None
    league: League | None = None
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict)
    callbacks: Mapping[str, Callback | None] = field(default_factory=dict)
    metrics: Mapping[str, InfoMetric] = field(default_factory=dict)

    def __post_init__(self) -> None:

        # Checked at construction, where the traceback shows the line to change; all other checks run later, together.
        if problems := list(other_kinds(self.env, self.policies, self.default_policy, self.mapping, self.league)):
            raise ConfigInvalid(problems)

    def learner(self, name: str) -> LearnerConfig | Policy:
        """Return the settings of a learner: its LearnerConfig, or the policy that learns alone."""
        return self.learners.get(name) or self.policies.get(name, self.default_policy)

    def all_learners(self) -> Iterator[tuple[str, Algorithm, PlacementOverrides]]:
        """Yield path, algorithm and placement of each policy without LearnerConfig, and of `learners`."""
        members = {name for learner in self.learners.values() for name in learner.policies}
        for name, policy in self.policies.items():
            if name not in members:
                yield f"policies.{name}", policy.acts_by, policy.placement
        yield "default_policy", self.default_policy.acts_by, self.default_policy.placement
        for name, learner in self.learners.items():
            yield f"learners.{name}", learner.algorithm, learner.placement

    def path_of_learner(self, name: str) -> str:
        """Return the configuration path of a learner's settings."""
        section = "learners" if name in self.learners else "policies" if name in self.policies else None
        return "default_policy" if section is None else f"{section}.{name}"


def other_kinds(env: Any, policies: Any, default_policy: Any, mapping: Any, league: Any) -> Iterator[str]:
    """Yield a problem for each part that has another type."""
    if isinstance(env, str) or callable(env):
        argument = repr(env) if isinstance(env, str) else getattr(env, "__name__", "factory")
        yield f"env is {env!r}, not an Env; write Env({argument})"
    elif not isinstance(env, Env):
        yield f"env is {env!r}, not an Env; write Env(factory, arguments)"
    everybody = {f"policies[{name!r}]": policy for name, policy in policies.items()}
    for where, policy in {**everybody, "default_policy": default_policy}.items():
        if not isinstance(policy, Policy):
            yield f"{where} is {_shown(policy)}, not a Policy; write Policy({_constructor_call('algorithm', policy)})"
            continue
        parts: tuple[tuple[str, Any], ...] = (("algorithm", policy.algorithm), ("model", policy.model))
        for part, value in parts:
            if isinstance(value, str | type):
                expression = _constructor_call(part, value)
                yield f"{where}.{part} is {_shown(value)}, where an object is wanted; write Policy({part}={expression})"
    rules = isinstance(mapping, Sequence) and all(isinstance(rule, Rule) for rule in mapping)
    if isinstance(mapping, type) or not (mapping is None or rules or callable(mapping)):
        yield (
            f"mapping is {mapping!r}, neither a list of rules, such as [Rule('adversary_*', 'hunters'), ...], nor a "
            "matchmaker, such as RandomSeats(['hunters', 'prey'])"
        )
    yield from uncalled_method(mapping)
    if not (league is None or isinstance(league, League)):
        yield f"league is {_shown(league)}, not a League; write League(PFSP())"
    elif not isinstance(mode := getattr(league, "matchmaker", LeagueMode()), LeagueMode):
        name = type(mode).__name__
        yield f"league.matchmaker: {name} is no LeagueMode; derive it from marlflow.LeagueMode"


def uncalled_method(mapping: Any) -> Iterator[str]:
    """Yield a method of a matchmaker that would never be called."""
    if isinstance(mapping, functools.partial) and isinstance(mapping.func, Matchmaker):
        yield f"mapping: the methods of {matchmaker_name(mapping.func)} are lost in a functools.partial; give it itself"
    if isinstance(mapping, Matchmaker):
        return
    for method in vars(Matchmaker):
        if callable(mapping) and not method.startswith("_") and callable(getattr(type(mapping), method, None)):
            name = matchmaker_name(mapping)
            yield f"mapping: {name} has a method {method} and is no matchmaker; derive it from marlflow.Matchmaker"
            return


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def _constructor_call(group: str, value: object) -> str:
    if isinstance(value, type):
        return f"{value.__name__}()"
    if not isinstance(value, str):
        return f"{type(value).__name__}(...)"
    # A shipped name, such as "PPO", gives the class that it configures.
    file = files(group).get(value.lower())
    return f"{(file.target or '').rpartition('.')[2]}()" if file else {"algorithm": "PPO()", "model": "MLP()"}[group]
