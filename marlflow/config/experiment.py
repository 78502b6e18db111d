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
    the given wrappers go around its own. A wrapper is a function, or the name of a shipped one: "last_action". Raises
    ConfigInvalid for an unknown name.
    """

    factory: Callable[..., Any] | str  #: makes one environment
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the factory, by name
    wrappers: Sequence[Callable[[Any], Any] | str] = ()  #: applied in order, the first innermost
    num_envs: Annotated[int, Range(1, 10**6)] = _UnsetNumEnvs(16)  #: environments that run at once, over all workers
    #: time limit of a step or reset, in seconds; None: none
    step_timeout_s: Annotated[float, Range(0.001, 1e6, unit=" seconds")] | None = None
    #: whether a worker steps all its environments by one call, which needs a batched version; auto: if there is one
    batched: bool | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        is_set = not isinstance(self.num_envs, _UnsetNumEnvs)
        values: dict[str, Any] = {"num_envs": self.num_envs if is_set else int(self.num_envs)}
        factory: object = self.factory
        if not (isinstance(factory, str) or callable(factory)):
            made = f"write Env({type(factory).__name__}, arguments)"
            raise ConfigInvalid([f"factory is {factory!r}, which makes no environment; {made}"])
        if isinstance(self.wrappers, str) or not isinstance(self.wrappers, Sequence):
            raise ConfigInvalid([f"wrappers is {self.wrappers!r}, not a list of functions and names"])
        if any(isinstance(wrapper, str) for wrapper in self.wrappers):
            from marlflow.config.named_environments import named_wrappers  # late: it imports this module

            values |= {"wrappers": named_wrappers(self.wrappers)}
        if isinstance(self.factory, str) and "/" in self.factory:
            values |= {"factory": PETTINGZOO, "arguments": {"id": self.factory, **self.arguments}}
        # A name without a dot is that of a shipped environment; an import path always has one.
        elif isinstance(self.factory, str) and "." not in self.factory:
            from marlflow.config.named_environments import named_environment  # late: it imports this module

            shipped = named_environment(self.factory, self.arguments)
            values |= {"factory": shipped.factory, "arguments": shipped.arguments}
            values |= {"wrappers": (*shipped.wrappers, *values.get("wrappers", self.wrappers))}
            values |= {} if is_set else {"num_envs": shipped.num_envs}
        self.__dict__.update(values)  # not by assignment, because the class is frozen


@dataclass(frozen=True)
class PolicyStop:
    """Set when one learner's plan ends while others continue; its policies then act with their last weights."""

    agent_steps: Steps | None = None  #: agent steps of its policy, or of all its policies together
    return_mean: Finite | None = None  #: mean return per agent and episode, which each of its policies has to reach


@dataclass(frozen=True)
class PlacementOverrides:
    """Override the run's `placement.learners` for one learner; None keeps the run's value."""

    num_learners: Processes | None = None  #: processes of one learner, which train together
    num_cpus: CPUs | None = None  #: CPUs, may be a fraction
    num_gpus: GPUs | None = None  #: GPUs, may be a fraction below 1
    resources: Mapping[str, CustomResources] | None = None  #: amounts of custom Ray resources, by name
    node: str | None = None  #: address of the required machine
    replay: Literal["with_learner", "own"] | None = None  #: process of the replay: with_learner or own
    device: str | None = None  #: torch device: cpu, cuda
    #: dtype of forward passes: float32, bfloat16; parameters are float32
    precision: Literal["float32", "bfloat16"] | None = None
    #: stages to run elsewhere, {<stage>: learner, worker or driver}; joint algorithms have none
    stages: Mapping[str, Where] | None = None


@dataclass(frozen=True)
class RunPlacement:
    """Set the resources of a run's processes."""

    learners: LearnerPlacement = field(default_factory=LearnerPlacement)  #: default resources of each learner
    #: GPUs that all learners share in equal fractions; None: num_gpus for each
    shared_gpus: Annotated[float, Range(0.0, 1e5, above=True)] | None = None
    #: resources of one actor that acts for all workers, {num_gpus: 1.0}; None: none
    inference: InferencePlacement | None = None
    spread: bool = False  #: processes on as many machines as possible, instead of as few


@dataclass(frozen=True)
class OfflineData:
    """Name the recorded rows that a policy learns from."""

    folder: str  #: folder of the records
    policy: str | None = None  #: recorded policy; None: the one of the same name, or the only one
    passes: Count = 1  #: times that all rows are read


@dataclass(frozen=True)
class Record:
    """Choose the rows that workers write to files."""

    policies: Sequence[str] | None = None  #: [<id>, ...]: policies whose rows are written; None: all that learn
    folder: str | None = None  #: folder of the files, which every worker must reach; None: record/ in the run's folder


@dataclass(frozen=True)
class InfoMetric:
    """A number in agents' infos as a figure of episodes, beside returns: InfoMetric("battle_won")."""

    info: str  #: its key, a.b in a dict in infos
    #: end: its value at the agent's end; sum: the sum over the episode's env steps, in Parallel environments
    at: Literal["sum", "end"] = "end"


@dataclass(frozen=True)
class Policy:
    """Set a policy's algorithm, networks and learner.

    It has a learner of its own name, unless a LearnerConfig lists it.
    """

    algorithm: Algorithm | None = None  #: how it learns and acts; None: PPO, or as the learner that lists it
    model: TorsoConfig = field(default_factory=MLP)  #: layers of its networks
    #: resources of its learner; None: as in placement.learners
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)  #: when its plan ends while others continue; None: never
    queue_fragments: Count | None = None  #: fragments that may wait for its plan; None: two rounds
    #: {folder: <records>, ...}: learns from recorded rows; None: from its own episodes
    experience: OfflineData | None = None
    #: [<id>, ...]: policies whose rows it learns from, itself only if named; None: its own, or as the mode of the
    #: league says
    learns_from: Sequence[str] | None = None
    #: {run: <folder of a run>, ...}: begins with parameters of its policy; None: with random ones
    init: FromRun | None = None
    #: <key>: credited, or info; numbers in infos as columns of its rows, added up by the rules of rewards, or the last
    #: one since the decision
    columns: Mapping[str, Literal["credited", "info"]] = field(default_factory=dict)
    #: <key>: coefficient, a number or a schedule; numbers in infos that are added to rewards when learning, and are
    #: credited columns of its rows; returns stay the environment's
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
    """Train several policies together, or one under another name."""

    policies: Sequence[str]  #: [<id>, ...]: policies that it trains; each has a model, and no algorithm of its own
    algorithm: Algorithm  #: how it learns, and how its policies act
    #: resources of its processes; None: as in placement.learners
    placement: PlacementOverrides = field(default_factory=PlacementOverrides)
    stop: PolicyStop = field(default_factory=PolicyStop)  #: when its plan ends while others continue; None: never
    queue_fragments: Count | None = None  #: fragments that may wait for its plan; None: two rounds


@dataclass(frozen=True)
class Rollouts:
    """Set the number of rollout workers, their fragments and their pace."""

    num_workers: Processes = 2  #: rollout workers, which play the environment
    fragment_env_steps: Steps = 400  #: env steps that a worker collects at a time, over all its environments
    #: lockstep: all workers sample in rounds, each after on-policy learners have trained on the last one; overlap:
    #: sampling continues during learning; asynchronous: overlap, and no worker waits for another: a round is one
    #: worker's
    pace: Literal["lockstep", "overlap", "asynchronous"] = "lockstep"
    #: auto, True, or False: whether a worker's fragment is one compiled call: environments, policies and resets; auto:
    #: if env=functional, jaxmarl, jumanji or pgx, or lbf or rware with env.batched=true, where all policies can be
    #: compiled
    compiled: bool | Literal["auto"] = "auto"
    placement: Resources = field(default_factory=Resources)  #: resources of each worker


@dataclass(frozen=True)
class Stop:
    """Set when a run ends: at the first condition that holds; None is never."""

    env_steps: Steps | None = None  #: env steps of the whole run
    #: seconds, including the last evaluation; a running round or update is cut short
    time_s: Annotated[float, Range(0.0, 1e9, above=True, unit=" seconds")] | None = None
    #: <id>: {return_mean: x}, in Python the number alone: mean return per agent and episode; all of them together
    policies: Mapping[str, Finite] = field(default_factory=dict)
    #: seconds for a running round to finish after a signal, half of them for its env steps, a quarter, at most 5, for
    #: its updates; and for a step or reset of an environment, or the last evaluation, after time_s
    grace_period_s: Annotated[float, Range(0.0, 1e6, unit=" seconds")] = 30.0


@dataclass(frozen=True)
class Faults:
    """Set how many faults of each kind a run tolerates; one more ends it with a checkpoint and an error.

    The undelivered rows of episodes that raise or hang are lost.
    """

    #: episodes of environments that raise, or break PettingZoo's contract; one more ends the run
    env_errors: CountOrZero = 0
    env_hangs: CountOrZero = 0  #: episodes with a step or reset longer than env.step_timeout_s; one more ends the run
    workers_lost: CountOrZero = 100  #: rollout workers and referees lost; each is replaced
    learners_lost: CountOrZero = 20  #: learners lost; each is restored as last saved
    replays_lost: CountOrZero = 20  #: replays lost; each restarts empty
    updates_skipped: CountOrZero = 100  #: optimizer steps skipped because the gradient was not finite
    checkpoints_failed: CountOrZero = 3  #: checkpoints that could not be written
    reports_failed: CountOrZero = 10  #: failed writes to metrics.jsonl, TensorBoard events and drawings
    records_failed: CountOrZero = 3  #: failed writes of recorded rows, which then wait in memory
    closes_failed: CountOrZero = 100  #: environments whose close() raised, or took too long
    callbacks_failed: CountOrZero | None = None  #: exceptions of callbacks and sinks; None: any number


@dataclass(frozen=True)
class CheckpointConfig:
    """Set when checkpoints are written and which are retained."""

    #: env steps from one checkpoint to the next, the first after the first round; None: only at the end
    every_env_steps: Steps | None = 50_000
    keep: Count = 2  #: newest checkpoints to retain
    best: str | None = None  #: policies.<id>.return_mean: also retain the checkpoint with the highest value
    replay: Literal["rows", "none"] = "rows"  #: contents of replays: rows; none: they are empty after resume
    #: running episodes longer than this start over on resume; shorter ones are replayed
    replay_max_env_steps: StepsOrZero = 10_000


@dataclass(frozen=True)
class Evaluation:
    """Set the evaluation episodes, which are separate from training; `docs/concepts.md` explains `time_share`."""

    every_env_steps: Steps = 50_000  #: env steps from one evaluation to the next, the first after the first round
    episodes: EpisodeCount = 20  #: episodes of each evaluation; 0: none
    final_episodes: EpisodeCount | None = None  #: episodes at the end of the run; None: as many as episodes; 0: none
    #: as_learned: sampled by algorithms that learn a distribution, greedy by those that learn values; greedy: the most
    #: likely action, or the mean; sampled: drawn from the learned distribution, without epsilon or other exploration
    #: noise
    mode: AskedMode = "as_learned"
    #: [random, <id>, ...]: each learning policy plays its own episodes, in each of its seats in turn, with each
    #: opponent in turn in all others, rounded up to equally many for each of these pairings; None: as in training
    opponents: Sequence[str] | None = None
    #: most of the run's time that evaluation takes, by playing fewer episodes, at least one; besides the first 30 s,
    #: and 30 s at the end; None: no limit
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
    """Set where reports are written, and how often."""

    every_env_steps: Steps = 10_000  #: env steps from one report to the next
    #: live, plain, none; auto: live on a terminal, else plain
    console: Literal["auto", "live", "plain", "none"] = "auto"
    jsonl: bool = True  #: metrics.jsonl, one object per report
    tensorboard: bool = True  #: TensorBoard events
    trace: bool = False  #: a timeline of stages, workers, evaluations and checkpoints: trace.json.gz
    #: <name>: {_target_: my.module.Sink, ...}, further sinks of reports; or by name: sinks=wandb
    sinks: Mapping[str, Callback | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RuntimeConfig:
    """Choose the runtime: one process, or Ray on this machine or on a cluster."""

    name: Literal["inline", "ray"] = "ray"  #: inline (one process, one thread) or ray
    #: address of a running Ray cluster, auto for the one that this machine is part of, or local to start Ray on this
    #: machine; None: the environment variable RAY_ADDRESS, else local
    address: str | None = None
    #: memory for rows and weights in transit, in bytes, if Ray is started here; None: Ray's default
    object_store_bytes: Annotated[int, Range(75 * 2**20, 2**50, shown="78643200 (75 MiB)")] | None = None
    #: this machine's IP address, if other machines connect to a Ray started here; None: loopback only
    node_ip_address: str | None = None
    dashboard: bool = False  #: Ray's dashboard in the browser, if Ray is started here: pip install 'ray[default]'


@dataclass(frozen=True)
class Experiment:
    """Describe a whole run."""

    env: Env  #: the environment, its arguments and its wrappers
    #: policies by name, {<id>: a policy}; add one with policy@policies.<id>=ppo
    policies: Mapping[str, Policy] = field(default_factory=dict)
    #: [{match: <glob of agents>, policy: <id>}, ...], the first match wins; None: the policy named like a group plays
    #: it (adversary_0, adversary_1: adversary); {_target_: my.module.Pairing, ...}: called for each episode with its
    #: id, its agents and a generator, returns agent to policy, e.g. marlflow.matchmaking.matchmakers.RandomSeats
    mapping: Sequence[Rule] | MatchmakerFunction | None = None
    default_policy: Policy = field(default_factory=Policy)  #: policy of each group of agents without one of its own
    rollouts: Rollouts = field(default_factory=Rollouts)  #: the rollout workers, their fragments and their pace
    #: resources of learners and of the run as a whole; placement=<name> changes some of it
    placement: RunPlacement = field(default_factory=RunPlacement)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)  #: one process or Ray
    #: the first condition that holds ends the run; None: never
    stop: Stop = field(default_factory=lambda: Stop(env_steps=100_000))
    evaluation: Evaluation = field(default_factory=Evaluation)  #: episodes separate from training, with their own seeds
    #: faults tolerated before the run ends with a checkpoint and an error
    faults: Faults = field(default_factory=Faults)
    #: the state that `marlflow resume` continues from
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: Log = field(default_factory=Log)  #: where reports are written, and how often
    #: rows that workers write to files, chosen by name: record=dataset record.policies=[<id>, ...]; record={} is
    #: record=dataset; None: none
    record: Record | None = None
    seed: Seed = 0  #: seed of all random numbers; the same seed and runtime=inline give the same run
    #: folder of the results, in runs/; on the command line by default the name given to env=, or its import path for
    #: env=python
    name: str = "experiment"
    objective: str | None = None  #: metric that a sweeper optimizes: policies.<id>.return_mean, learners.<id>.updates
    #: {_target_: marlflow.league.League, ...}: policies play each other and their own frozen versions; chosen by name:
    #: league=pfsp; None: as mapping says
    league: League | None = None
    #: <id>: trains several policies together, which have no algorithm of their own; add one with
    #: learner@learners.<id>=qmix 'learners.<id>.policies=[<id>, ...]'
    learners: Mapping[str, LearnerConfig] = field(default_factory=dict)
    #: <name>: {_target_: my.module.EarlyStop, ...}, called when something happens in the run, which they may stop; or
    #: by name: callback=early_stop
    callbacks: Mapping[str, Callback | None] = field(default_factory=dict)
    #: <name>: {info: <key>, at: end}: a number in infos as a figure of episodes; at its agent's end, or at: sum, the
    #: sum over its env steps
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


def _other_policies(policies: Any, default_policy: Any) -> Iterator[str]:
    if not isinstance(policies, Mapping):
        yield f"policies is {policies!r}, where policies by id are wanted, such as {{'hunters': Policy(PPO())}}"
        policies = {}
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


def other_kinds(env: Any, policies: Any, default_policy: Any, mapping: Any, league: Any) -> Iterator[str]:
    """Yield a problem for each part that has another type."""
    if isinstance(env, str) or callable(env):
        argument = repr(env) if isinstance(env, str) else getattr(env, "__name__", "factory")
        yield f"env is {env!r}, not an Env; write Env({argument})"
    elif not isinstance(env, Env):
        yield f"env is {env!r}, not an Env; write Env(factory, arguments)"
    yield from _other_policies(policies, default_policy)
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
