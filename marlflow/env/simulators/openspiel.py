"""Sequential and simultaneous OpenSpiel games as AEC environments.

OpenSpiel: Lanctot et al., "OpenSpiel: A Framework for Reinforcement Learning in Games" (2019, arXiv:1908.09453).

    env = marlflow.env.simulators.openspiel.env("leduc_poker")
    env = marlflow.env.simulators.openspiel.env("goofspiel(num_cards=4)", {"imp_info": True})

At a simultaneous node players choose in turn, unseen by others, and the last choice applies all. Chance is sampled
inside.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pyspiel
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.simulators.openspiel_game import (
    RNG_SEED,
    Tensor,
    draws_chance_itself,
    game_parameters,
    load_game,
    tensor_of,
    view_of,
)

RenderMode = Literal["ansi", "human"]

_RENDER_MODES = ("ansi", "human")
_CHANCE, _TERMINAL = int(pyspiel.PlayerId.CHANCE), int(pyspiel.PlayerId.TERMINAL)
# C++ objects, rebuilt from the parameters and the moves.
_NOT_PICKLED = ("_game", "_state", "_view")


class OpenSpielEnv(AECEnv[str, dict[str, Array], int | None]):
    """Agents `player_0`, `player_1`, ... of one OpenSpiel game; all terminate together.

    An observation is `{"observation": float32 [D], "action_mask": int8 [num_distinct_actions]}`; the mask is all zero
    unless it is the player's turn. `state()` concatenates all players' observations. Rewards are differences of
    `returns()`; rewards before the first decision come with the first move.

    `observation` selects the game's tensor; by default the information state, which has perfect recall, if there is
    one. `max_env_steps` truncates all agents (never between simultaneous choices). Raises ConfigInvalid if the game
    cannot be played.
    """

    metadata: dict[str, Any] = {"name": "openspiel", "render_modes": list(_RENDER_MODES)}  # noqa: RUF012  PettingZoo's

    def __init__(
        self,
        game: str = "kuhn_poker",
        parameters: Mapping[str, Any] | None = None,
        observation: Tensor | None = None,
        max_env_steps: int | None = None,
        render_mode: RenderMode | None = None,
    ) -> None:
        if max_env_steps is not None and (type(max_env_steps) is not int or max_env_steps < 1):
            problem = f"max_env_steps must be a whole number from 1, or null for no limit, not {max_env_steps!r}"
            raise ConfigInvalid([problem])
        if render_mode not in (None, *_RENDER_MODES):
            raise ConfigInvalid([f"render_mode must be one of {', '.join(_RENDER_MODES)} or null, not {render_mode!r}"])
        self.render_mode, self.max_env_steps = render_mode, max_env_steps
        self._parameters = game_parameters(game, parameters or {})
        self._game: Any = load_game(self._parameters)
        self._tensor = tensor_of(self._game, observation)
        self._view, size = view_of(self._game, self._tensor)
        # None until the first reset.
        self._state: Any = None
        self._draws_itself = draws_chance_itself(self._game)
        self._rewards_every_step = self._game.get_type().reward_model == pyspiel.GameType.RewardModel.REWARDS
        self._random = random.Random()
        self._seeded: dict[str, int] = {}

        self.metadata = {**type(self).metadata, "name": f"openspiel/{str(self._game).removesuffix('()')}"}
        self.possible_agents = [f"player_{player}" for player in range(self._game.num_players())]
        self.agents: list[str] = []
        self._select(0, [])
        self._player = {agent: player for player, agent in enumerate(self.possible_agents)}
        self._num_actions = self._game.num_distinct_actions()
        self.state_space = _unbounded(size * len(self.possible_agents))
        self._action_spaces = {agent: Discrete(self._num_actions) for agent in self.possible_agents}
        mask = Box(0, 1, (self._num_actions,), np.int8)
        self._observation_spaces = {
            agent: Dict({"observation": _unbounded(size), "action_mask": mask}) for agent in self.possible_agents
        }

    def observation_space(self, agent: str) -> Dict:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        del options
        if seed is not None:
            self._random.seed(int(seed))
        # Such a game takes its seed as a parameter, so each episode loads it with a new one.
        if self._draws_itself:
            self._seeded = {RNG_SEED: self._random.getrandbits(31)}
            self._load()
        agents = self.possible_agents
        self.agents = agents[:]
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(agents, 0.0)
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = dict.fromkeys(agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        self.env_steps = 0
        self._over = self._has_rewards = False
        # OpenSpiel's returns() are totals; PettingZoo's rewards are per step.
        self._returns_issued = [0.0] * len(agents)
        self._moves: list[int | list[int]] = []
        self._state = self._game.new_initial_state()
        if self._advance():
            self._issue_rewards()
        if self.render_mode == "human":
            self.render()

    def step(self, action: int | None) -> None:
        if not self.agents:
            raise ValueError(self._no_game())
        if self._over:
            self._take_dead_step(action)
            return
        agent = self.agent_selection
        move = self._legal_action(action, agent)
        # Rewards show for one step only.
        if self._has_rewards:
            self.rewards, self._has_rewards = dict.fromkeys(self.agents, 0.0), False
        # PettingZoo counts an agent's cumulative reward from its own last action.
        self._cumulative_rewards[agent] = 0.0
        self.env_steps += 1
        # At a simultaneous node choices are collected until the last player has chosen.
        if self._joint_action is not None:
            self._joint_action[self._player[agent]] = move
            if self._choices_left:
                self._select(*self._choices_left.pop())
                return
        self._apply(move if self._joint_action is None else self._joint_action)
        finished = self._advance()
        if not finished and self.max_env_steps is not None and self.env_steps >= self.max_env_steps:
            self._end(self.truncations)
        if finished or self._rewards_every_step:
            self._issue_rewards()
        if self.render_mode == "human":
            self.render()

    def observe(self, agent: str) -> dict[str, Array]:
        legal = self._legal.get(agent, ())
        return {"observation": self._observation(self._player[agent]), "action_mask": self._mask(legal)}

    def state(self) -> Array:
        return np.concatenate([self._observation(player) for player in range(len(self.possible_agents))])

    def moves(self) -> list[int | list[int]]:
        """Return all moves so far, chance included: one action, or all players' simultaneous ones."""
        return [move if isinstance(move, int) else move[:] for move in self._moves]

    def render(self) -> str | None:
        if self.render_mode == "ansi":
            return str(self._state)
        if self.render_mode == "human":
            sys.stdout.write(f"{self._state}\n")
        return None

    def observation_text(self, agent: str) -> str:
        """Return the part of the game that `agent` knows, as text by OpenSpiel; hidden information is left out."""
        kind, state, player = self._game.get_type(), self._state, self._player[agent]
        if self.moves_are_public:
            return str(state)
        texts = []
        if kind.provides_observation_string:
            texts.append(state.observation_string(player))
        if kind.provides_information_state_string:
            texts.append(state.information_state_string(player))
        return "\n".join(dict.fromkeys(text.rstrip() for text in texts))

    def action_text(self, agent: str, action: int) -> str:
        """Return OpenSpiel's name of an action of `agent`."""
        return str(self._state.action_to_string(self._player[agent], action))

    @property
    def moves_are_public(self) -> bool:
        """Whether each player knows the whole state at every decision."""
        kind = self._game.get_type()
        perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
        return bool(perfect and kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL)

    def close(self) -> None:
        # There is nothing to free.
        pass

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_PICKLED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()
        self._state = None
        if "_moves" in state:
            self._state, self._moves = self._game.new_initial_state(), []
            for move in state["_moves"]:
                self._apply(move)

    def _observation(self, player: int) -> Array:
        if self._state is None:
            raise ValueError(self._no_game())
        return self._view(self._state, player)

    def _mask(self, legal: Iterable[int]) -> Array:
        # Filling a bytearray item by item costs half of filling an array.
        mask = bytearray(self._num_actions)
        try:
            for action in legal:
                mask[action] = 1
        except IndexError as error:
            problem = f"the game allows action {action}, but has num_distinct_actions {self._num_actions}"
            raise ValueError(f"{self.metadata['name']}: {problem}") from error
        return np.frombuffer(mask, np.int8)

    def _load(self) -> None:
        self._game = load_game({**self._parameters, **self._seeded})
        self._view, _ = view_of(self._game, self._tensor)

    def _apply(self, move: int | list[int]) -> None:
        self._moves.append(move)
        if isinstance(move, int):
            self._state.apply_action(move)
        else:
            self._state.apply_actions(move)

    def _advance(self) -> bool:
        # Returns whether the game is over.
        state = self._state
        self._joint_action: list[int] | None = None
        while (player := state.current_player()) < 0:
            if player == _CHANCE:
                self._apply(_sample_outcome(state.chance_outcomes(), self._random.random()))
            elif player == _TERMINAL:
                self._end(self.terminations)
                return True
            elif self._begin_simultaneous_choice():
                return False
        self._select(player, state.legal_actions(player))
        return False

    def _begin_simultaneous_choice(self) -> bool:
        # If no player has a choice, the node is applied and False returned.
        players = range(len(self.possible_agents))
        # OpenSpiel expects 0 for players without legal actions.
        self._joint_action = [0] * len(players)
        choices = [(player, self._state.legal_actions(player)) for player in reversed(players)]
        self._choices_left = [(player, legal) for player, legal in choices if legal]
        if not self._choices_left:
            self._apply(self._joint_action)
            self._joint_action = None
            return False
        self._select(*self._choices_left.pop())
        return True

    def _select(self, player: int, legal: list[int]) -> None:
        self.agent_selection = self.possible_agents[player]
        self._legal = {self.agent_selection: legal}

    def _end(self, flags: dict[str, bool]) -> None:
        for agent in flags:
            flags[agent] = True
        self._over = True
        self.agent_selection = self.possible_agents[0]
        if flags is self.terminations:
            self._legal = {}
        elif self._joint_action is not None:
            # The other players of a simultaneous node that is cut have legal actions, too.
            self._legal |= {self.possible_agents[player]: legal for player, legal in self._choices_left}

    def _issue_rewards(self) -> None:
        rewards = [total - issued for total, issued in zip(self._state.returns(), self._returns_issued, strict=True)]
        self._returns_issued = [issued + reward for issued, reward in zip(self._returns_issued, rewards, strict=True)]
        self.rewards = dict(zip(self.agents, rewards, strict=True))
        self._has_rewards = True
        self._accumulate_rewards()

    def _take_dead_step(self, action: int | None) -> None:
        if action is not None:
            raise ValueError(f"{self.metadata['name']}: the game is over, so step(None) was expected, not {action!r}")
        agent = self.agents.pop(0)
        for table in (self._cumulative_rewards, self.terminations, self.truncations, self.infos):
            del table[agent]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if self.agents:
            self.agent_selection = self.agents[0]

    def _legal_action(self, action: int | None, agent: str) -> int:
        try:
            chosen = operator.index(action)  # type: ignore[arg-type]
        except TypeError:
            chosen = -1
        if chosen not in self._legal.get(agent, ()):
            legal = ", ".join(map(str, self._legal.get(agent, ()))) or "none, which is an error of the game"
            where = f"{self.metadata['name']}, after {self.env_steps} env steps"
            raise ValueError(f"{where}: action {action!r} of {agent!r} is illegal; its legal actions are {legal}")
        return chosen

    def _no_game(self) -> str:
        return f"{self.metadata['name']}: no game is running; call reset() first"


def env(
    game: str = "kuhn_poker",
    parameters: Mapping[str, Any] | None = None,
    observation: Tensor | None = None,
    max_env_steps: int | None = None,
    render_mode: RenderMode | None = None,
) -> OpenSpielEnv:
    """Make an OpenSpiel game as an AECEnv; see OpenSpielEnv."""
    return OpenSpielEnv(game, parameters, observation, max_env_steps, render_mode)


def _unbounded(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,), np.float32)


def _sample_outcome(outcomes: Iterable[tuple[int, float]], uniform: float) -> int:
    outcome = 0
    for candidate, probability in outcomes:
        if probability > 0:
            outcome = candidate
            uniform -= probability
            if uniform < 0:
                break
    # Falls through to the last outcome if rounding leaves the probabilities' sum below 1.
    return outcome
