"""Load the policies of a finished run, without Ray and without Hydra, to act for the agents of its environment."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, InvalidInput
from marlflow.base.random import RowRandom, episode_seed, key
from marlflow.base.sentences import meant
from marlflow.base.spaces import Spaces
from marlflow.config.checked import CheckedExperiment
from marlflow.config.environment import environment_maker, environment_name
from marlflow.config.experiment import Experiment
from marlflow.config.imported_policies import space_problem
from marlflow.config.recorded import working_in
from marlflow.config.records import played_environment
from marlflow.driver.entrants import Entrant, Entrants
from marlflow.driver.saved_experiment import finished_run, sides_or_none
from marlflow.env.batched.single import as_pettingzoo
from marlflow.env.episode_location import raised
from marlflow.env.masking import MASK, OBSERVATION, joined
from marlflow.policy.actor import ASKED_MODES, AskedMode, memory_shape_of
from marlflow.runs.saved_league import SavedRun
from marlflow.runs.saved_runs import Which, run_folder
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.episodes import EVALUATION


class TrainedPolicy:
    """A policy of a checkpoint, a member of a league, or a scripted policy.

        actions = team["prey"].act(observations, action_masks)

    `agents` are the agents that it can play. `about` has its algorithm, version, env steps, and SHA-256 of its
    parameters. If it plays agents with different spaces, or by different networks, this object acts for `agent`, by
    default the first one.
    """

    def __init__(self, entrant: Entrant, agent: str | None = None) -> None:
        if entrant.mixture or not entrant.policies:
            raise ConfigInvalid([f"{entrant.label!r} is no policy that acts by itself"])
        spec = next(iter(entrant.policies.values())) if agent is None else entrant.policies[agent]
        self.name = entrant.label
        self.agents = tuple(entrant.policies)
        self.about: Mapping[str, Any] = entrant.about
        self.source: Mapping[str, Any] = entrant.source
        self.spaces: Spaces = spec.spaces
        self.actor = spec.actor()
        self._entrant, self._spec = entrant, spec
        # The entrant's other networks, by the names of their policies.
        self._others: dict[str, TrainedPolicy] = {}
        self._slots = ActingPolicy(self.name, self.actor, self.spaces, 0, False)
        self._random = np.random.default_rng()

    def __repr__(self) -> str:
        return f"<policy {self.name!r} ({self.about.get('algorithm')}) for {', '.join(self.agents)}>"

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a memory."""
        return memory_shape_of(self.actor) is not None

    def of_agent(self, agent: str) -> TrainedPolicy:
        """Return the policy as it plays `agent`: another one if it does so by another network or in other spaces."""
        # `random` has the spaces of each agent, and the team of another run a policy for each.
        spec = self._entrant.policies.get(agent, self._spec)
        if spec.name == self._spec.name:
            return self
        if spec.name not in self._others:
            self._others[spec.name] = TrainedPolicy(self._entrant, agent)
        return self._others[spec.name]

    @property
    def parts(self) -> list[str]:
        """The names of the policies that it consists of: several, if it is a team."""
        return list(dict.fromkeys(spec.name for spec in self._entrant.policies.values()))

    def misfit(self, agent: str, spaces: Spaces) -> str:
        """Return why it cannot play an agent of these `spaces`."""
        saved = getattr(self._spec.algorithm, "saved", None)
        differs = None if saved is None else space_problem(saved, spaces, agent)
        return differs or f"{self.name!r} cannot play agent {agent!r}; it can play {', '.join(self.agents)}"

    def memory(self, rows: int) -> Array | None:
        """Return the memory at the start of `rows` episodes, float32 [rows, ...]; None if it has none."""
        shape = memory_shape_of(self.actor)
        return None if shape is None else np.zeros((rows, *shape), np.float32)

    def act(
        self,
        observations: Sequence[Any] | Array,
        action_masks: Sequence[Array | None] | Array | None = None,
        memory: Array | None = None,
        mode: AskedMode = "as_learned",
        generator: np.random.Generator | RowRandom | None = None,
    ) -> Array:
        """Return the actions for N observations, [N, ...], as the environment takes them.

        `observations` are without action masks; of Dict and Tuple spaces, a list of N of them. `action_masks` [N, A]
        are true where an action is legal; None: all are. A recurrent policy updates `memory` in place; begin with
        `memory(N)`. `mode` is as_learned, as its algorithm learns to; greedy, the most likely action; or sampled, drawn
        from the learned distribution with `generator`. Raises InvalidInput for another mode, and for observations that
        are not of the policy's space.
        """
        rows = len(observations)
        if mode not in ASKED_MODES:
            raise InvalidInput([f"mode must be one of {', '.join(ASKED_MODES)}, not {mode!r}"])
        if self.is_recurrent and memory is None:
            raise InvalidInput([f"policy {self.name!r} has a memory; give act(..., memory=policy.memory({rows}))"])
        shape = memory_shape_of(self.actor)
        if memory is not None and shape is not None and not _is_memory(memory, (rows, *shape)):
            given = f"{memory.dtype} {list(memory.shape)}"
            raise InvalidInput([f"memory of {rows} rows is float32 {[rows, *shape]}, not {given}: see policy.memory"])
        if action_masks is not None and len(action_masks) != rows:
            raise InvalidInput([f"there are {rows} observations and {len(action_masks)} action masks"])
        try:
            obs = self._slots.stack(list(observations))
            masks = [None] * rows if action_masks is None else [joined(mask) for mask in action_masks]
            legal = self._slots.stack_masks(masks) if self.spaces.masked else None
        except ObservationOutside as outside:
            raise InvalidInput([f"policy {self.name!r}, row {outside.index}: {outside.reason}"]) from outside
        if not isinstance(generator, RowRandom):
            drawn = (generator or self._random).integers(0, 2**64, rows, np.uint64)
            generator = RowRandom(drawn, np.zeros(rows, np.int64))
        acted = self.actor.act(obs, legal, memory, self._spec.mode(mode), generator)
        if memory is not None and self.is_recurrent:
            memory[...] = acted.memory
        return self.decoded(acted.action)

    def decoded(self, action: Array) -> Array:
        """Convert rows of the actor's actions to actions as the environment takes them, [N, ...]."""
        return np.asarray(self._slots.decoder.choices(action))


def _is_memory(memory: Array, shape: tuple[int, ...]) -> bool:
    return memory.shape == shape and memory.dtype == np.float32


_FRAMES = 4
# As many as a worker holds of a league's snapshots, unless more are seated.
_MOST_LOADED = 64
# One lock for all teams, because a team with a lock of its own could not be pickled.
_loading = threading.RLock()


@dataclass(slots=True)
class _AgentState:
    """An agent in the current episode: who plays it, that policy's memory, and how often it has decided."""

    policy: str
    memory: Array | None
    decisions: int = 0


class Team:
    """The policies of a run, as `mf.load` returns them.

        team = mf.load("runs/simple_tag/2026-01-31_12-00-00")
        env = team.make_env(render_mode="human")
        observations, infos = env.reset(seed=team.reset())
        actions = {agent: team.act(agent, observations[agent], infos[agent]) for agent in env.agents}

    `team["prey"]` is one policy; other names are members of the run's league (`main@12`), `random`, members of other
    runs (`runs/b:main`) and exported files. `policies` are the names of the run's own.
    """

    def __init__(
        self,
        run: SavedRun,
        checked: CheckedExperiment,
        entrants: Entrants,
        started_in: Path | None,
    ) -> None:
        self.run_dir: Path = run.run_dir
        self.checkpoint = run.checkpoint.env_steps
        self.experiment = checked.experiment
        self.agents = checked.agents
        self._checked, self._entrants = checked, entrants
        self._started_in = started_in
        # By name, the last used last.
        self._loaded: dict[str, TrainedPolicy] = {}
        self.reset()

    def __repr__(self) -> str:
        return f"<team of {self.run_dir} at {self.checkpoint:,} env steps: {', '.join(self.policies)}>"

    @functools.cached_property
    def policies(self) -> tuple[str, ...]:
        """The names of the run's policies, of the members of its league, and of opponents that do not learn."""
        return tuple(dict.fromkeys([*self._checked.spec.policies, *self._entrants.names]))

    @property
    def learning(self) -> tuple[str, ...]:
        """The names of the run's policies that learned."""
        return self._checked.spec.learning

    def __iter__(self) -> Iterator[str]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def __getitem__(self, name: str) -> TrainedPolicy:
        with _loading:
            trained = self._loaded.pop(name, None)
            is_new = trained is None
            self._loaded[name] = trained = trained or TrainedPolicy(self._entrants.find(name))
            if is_new:
                self._unload()
            return trained

    def _unload(self) -> None:
        """Drop the least recently used policies, except the run's own and all that play in this episode."""
        stay = {*self._checked.spec.policies, *(state.policy for state in list(self._states.values()))}
        others = [name for name in self._loaded if name not in stay]
        for name in others[:-_MOST_LOADED]:
            del self._loaded[name]

    def make_env(self, render_mode: str | None = None, **arguments: Any) -> Any:
        """Make the environment of the run, AEC or Parallel, with the same arguments and wrappers.

        If the run learned from records, it is the environment that was recorded; a batched environment is one of its
        environments. `arguments` replace the run's. Raises ConfigInvalid if it cannot be made.
        """
        return as_pettingzoo(self.played_env(render_mode, **arguments))

    def played_env(self, render_mode: str | None = None, **arguments: Any) -> Any:
        """Make the environment as `make_env`, but a BatchedEnv of one if the run's is batched only."""
        env = played_environment(self.experiment.env)
        changes = {**({} if render_mode is None else {"render_mode": render_mode}), **arguments}
        try:
            with working_in(self._started_in):
                return environment_maker(replace(env, arguments={**env.arguments, **changes}))()
        except InvalidInput:
            raise
        except Exception as error:
            given = f" with {', '.join(f'{name}={value!r}' for name, value in changes.items())}" if changes else ""
            reason = raised(error, _FRAMES)
            raise ConfigInvalid([f"environment {environment_name(env)} cannot be made{given}: {reason}"]) from error

    def reset(self, seed: int | None = None, episode: int = 0) -> int:
        """Begin an episode: forget all memory. Return a seed for the environment's reset.

        The same `seed` and `episode` give the same seed, and the same actions in mode sampled. Without a `seed` they
        are new each time.
        """
        self._seed = secrets.randbits(63) if seed is None else seed
        self._episode = episode
        self._states: dict[str, _AgentState] = {}
        return episode_seed(self._seed, EVALUATION, episode)

    def forget(self, agent: str) -> None:
        """Forget the memory of an agent that ended, and may come back in this episode."""
        if (state := self._states.get(agent)) is not None and state.memory is not None:
            state.memory[...] = 0.0

    def act(
        self,
        agent: str,
        observation: Any,
        info: Mapping[str, Any] | None = None,
        mode: AskedMode = "as_learned",
        policy: str | None = None,
    ) -> Any:
        """Return an agent's action for its observation, both as in the environment of `make_env`.

        Call `reset` at the start of an episode, and `act` once for each decision: memory is kept per agent (see
        `forget`). `info` is the agent's, needed if the action mask is there and not in the observation; where neither
        has one, all actions are legal. `policy` says who plays the agent where a league or another matchmaker decides
        that. Raises InvalidInput.
        """
        trained = self.player(agent, policy)
        row, mask = self._split(agent, trained, observation, info)
        state = self._states.get(agent)
        if state is None or state.policy != trained.name:
            state = self._states[agent] = _AgentState(trained.name, trained.memory(1))
        generator = RowRandom(
            np.array([key(self._seed, EVALUATION, self._episode, self._stream(agent))], np.uint64),
            np.array([state.decisions]),
        )
        action = trained.act([row], [mask], state.memory, mode, generator)[0]
        state.decisions += 1
        return action

    def player(self, agent: str, policy: str | None = None) -> TrainedPolicy:
        """Return who plays an agent: `policy`, or by default as in training. Raises ConfigInvalid."""
        spec = self._checked.spec
        name = policy
        if name is None and spec.mapping is not None:
            name = spec.mapping(agent) if callable(spec.mapping) else spec.mapping.get(agent)
        elif name is None:
            name = self._only_player(agent)
        if name is None or (agent not in self.agents and spec.mapping is not None and not callable(spec.mapping)):
            raise ConfigInvalid([f"there is no agent {agent!r}{meant(agent, self.agents, 'the agents are')}"])
        trained = self[name]
        if agent in self.agents and agent not in trained.agents:
            raise ConfigInvalid([trained.misfit(agent, self._entrants.seats[agent])])
        with _loading:
            return trained.of_agent(agent)

    def _only_player(self, agent: str) -> str | None:
        policies = self._checked.spec.policies
        fits = [name for name, agents in self._checked.players.items() if agent in agents]
        learning = [name for name in fits if policies[name].algorithm.capabilities.learns]
        if len(learning or fits) > 1:
            raise ConfigInvalid(
                [
                    f"agent {agent!r} was played by {', '.join(fits)} in turn; say by whom: "
                    f"act(..., policy={(learning or fits)[0]!r})"
                ]
            )
        return next(iter(learning or fits), None)

    def _stream(self, agent: str) -> int:
        if not callable(self._checked.spec.mapping) and agent in self.agents:
            return self.agents.index(agent)
        return key(*agent.encode())

    def _split(
        self, agent: str, trained: TrainedPolicy, observation: Any, info: Mapping[str, Any] | None
    ) -> tuple[Any, Array | None]:
        """Return an observation without its action mask, and the mask."""
        if isinstance(observation, Mapping) and MASK in observation:
            rest = {name: part for name, part in observation.items() if name != MASK}
            return (rest[OBSERVATION] if set(rest) == {OBSERVATION} else rest), joined(observation[MASK])
        if info is None and trained.spaces.masked:
            raise InvalidInput(
                [
                    f"{trained.name!r} acts by action masks: give agent {agent!r} its whole observation, if {MASK!r} "
                    f"is in it, or its info: act({agent!r}, observation, info)"
                ]
            )
        return observation, joined((info or {}).get(MASK))


def load(
    run: Path | str,
    checkpoint: Which = None,
    experiment: Experiment | None = None,
    trust: Collection[str] | None = (),
    strict: bool = False,
) -> Team:
    """Load the policies of the run in folder `run`, which may still be in progress.

    `checkpoint` is `"best"`, the number of env steps of one, or by default the newest whole one. The best has the
    highest metric `checkpoint.best`; if the run had none, the highest `eval_return_mean` of its only learner.
    `experiment` is needed if the run's experiment cannot be built from its folder. If another user made the run, names
    outside marlflow's parts are imported only if they are in `trust`; None imports all. Opens the environment once.

    If that checkpoint is damaged, the one before it is used, and a warning is logged; if `strict`, it is refused. The
    same holds for the checkpoints of other runs that the team plays against.

    Raises InvalidInput: the folder of no run, no whole checkpoint, code that is not trusted, another environment.
    """
    base = Path.cwd()
    for is_last in (False, True):
        with finished_run(run_folder(run, "mf.load", "load"), checkpoint, experiment, trust, strict) as finished:
            saved, checked = finished.saved, finished.checked
        entrants = Entrants(checked, saved, sides_or_none(checked), base, trust, strict)
        try:
            # Now, because a run in progress may remove the checkpoint.
            entrants.read(name for name in checked.spec.learning if name in saved.names)
        except CheckpointUnusable:
            # It has just done so, unless it happens twice.
            if is_last or checkpoint is not None:
                raise
            continue
        break
    return Team(saved, checked, entrants, finished.started_in)
