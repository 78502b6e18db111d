"""Games of pgx: chess, go, connect four and others, in which players take turns.

pgx: Koyamada et al., "Pgx: Hardware-Accelerated Parallel Game Simulators for Reinforcement Learning" (NeurIPS 2023,
arXiv:2303.17503). `pip install 'marlflow[pgx]'`.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from gymnasium import spaces
from PIL import Image

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.env.functional.batch import FunctionalBatch, batch_of, rarely
from marlflow.env.functional_protocol import ByGroup, FunctionalStep

FirstPlayer = Literal["player_0", "drawn"]
_FIRST = "player_0", "drawn"
_PLAYER = "player"


class PgxGame:
    """A game of pgx. Its state is pgx's, and the number that pgx gives to player_0.

    first_player: pgx draws which of its players begins. `player_0`: agents are named in the order of their first
        turns. `drawn`: player_0 is pgx's player 0, who may begin or not.
    may_be_cut: whether any env step may be an episode's last one, so that all players see the game in each.
    """

    turn_based = True

    def __init__(self, game: Any, first_player: FirstPlayer, may_be_cut: bool = False) -> None:
        self.game, self._first_player, self._may_be_cut = game, first_player, may_be_cut
        self.groups = {_PLAYER: [f"player_{number}" for number in range(game.num_players)]}
        self._seats = jnp.arange(game.num_players)
        # pgx draws them without a size.
        if not game.id.startswith("minatar"):
            self.render = self._picture
        like = jax.eval_shape(game.init, jax.ShapeDtypeStruct((2,), np.uint32))
        self._observation_space = _space(like.observation)
        self._action_space = spaces.Discrete(like.legal_action_mask.shape[0])

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return self._action_space

    def _picture(self, state: Any) -> Any:
        import resvg_py  # late: training needs no pictures

        drawn = resvg_py.svg_to_bytes(svg_string=state[0].to_svg())
        return np.asarray(Image.open(io.BytesIO(bytes(drawn))).convert("RGB"))

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        table = self.game.init(key)
        player_0 = table.current_player if self._first_player == "player_0" else jnp.zeros_like(table.current_player)
        step = self._shown((table, player_0))
        return (table, player_0), FunctionalStep(
            step.observations, decides=step.decides, action_masks=step.action_masks
        )

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        table, player_0 = state
        played = self.game.step(table, actions[_PLAYER][self._mover(state)], key)
        return (played, player_0), self._shown((played, player_0))

    def _mover(self, state: Any) -> Any:
        """Return the position of the agent whose turn it is."""
        table, player_0 = state
        return (table.current_player - player_0) % self.game.num_players

    def _shown(self, state: Any) -> FunctionalStep:
        table, players = state[0], self._players(state)
        if self._may_be_cut:
            seen = self._views(table, players)
        else:
            # The player to move sees the game; at the end of the game all players do.
            over = table.terminated | table.truncated
            one = jnp.broadcast_to(table.observation, (len(players), *table.observation.shape))
            seen = rarely(over, self._views, one, table, players)
        return FunctionalStep(
            {_PLAYER: self._converted(seen)},
            {_PLAYER: table.rewards[players]},
            {_PLAYER: table.terminated},
            {_PLAYER: table.truncated},
            {_PLAYER: self._seats == self._mover(state)},
            {_PLAYER: jnp.broadcast_to(table.legal_action_mask, (len(players), *table.legal_action_mask.shape))},
        )

    def global_state(self, state: Any) -> Any:
        """Return the observations of all players, float32, one after another: agents' own are of their turns."""
        return self._views(state[0], self._players(state)).astype(jnp.float32).ravel()

    def _players(self, state: Any) -> Any:
        """Return the numbers that pgx gives to the agents."""
        _, player_0 = state
        return (self._seats + player_0) % self.game.num_players

    def _views(self, table: Any, players: Any) -> Any:
        return jax.vmap(self._view, (None, 0))(table, players)

    def _view(self, table: Any, player: Any) -> Any:
        with warnings.catch_warnings():
            # pgx deprecates only the argument; without it, only the player to move has an observation.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.game.observe(table, player)

    def _converted(self, seen: Any) -> Any:
        return seen.astype(jax.dtypes.canonicalize_dtype(self._observation_space.dtype))


def _space(like: Any) -> spaces.Box:
    """Return the space of observations: pgx declares no bounds."""
    dtype = np.dtype(like.dtype)
    if dtype.kind == "b":
        return spaces.Box(0, 1, like.shape, np.int8)
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, like.shape, dtype.type)


def batched_env(
    num_envs: int,
    name: str = "connect_four",
    parameters: Mapping[str, Any] | None = None,
    first_player: FirstPlayer = "player_0",
    max_env_steps: int | None = None,
    render_mode: str | None = None,
) -> FunctionalBatch:
    """Return `num_envs` games of pgx, played by player_0, player_1, ...

    name: as in `pgx.available_envs()`.
    parameters: arguments of the game's class, such as `{"size": 13}` of hex.
    first_player: who begins: player_0, or any (`drawn`).
    max_env_steps: env steps after which all agents are truncated; None: the game's own end alone.
    render_mode: `rgb_array`, or None.

    Raises ConfigInvalid.
    """
    known = list(pgx.available_envs())
    if name not in known:
        raise ConfigInvalid([f"pgx has no game {name!r}{meant(name, known)}"])
    if first_player not in _FIRST:
        raise ConfigInvalid([f"there is no first_player {first_player!r}{meant(first_player, _FIRST, 'there are')}"])
    given = dict(parameters or {})
    return batch_of(
        num_envs,
        f"pgx_{name}",
        ("pgx", name, first_player),
        given,
        lambda: PgxGame(_made(name, given), first_player, max_env_steps is not None),
        max_env_steps,
        render_mode,
    )


def _made(name: str, parameters: Mapping[str, Any]) -> Any:
    game = pgx.make(name)
    if not parameters:
        return game
    try:
        other = type(game)(**parameters)
        # Some arguments are refused only here.
        jax.eval_shape(other.init, jax.ShapeDtypeStruct((2,), np.uint32))
        return other
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        problem = f"{name} of pgx cannot be made with {given}: {reason} (env.parameters)"
        raise ConfigInvalid([problem]) from error
