"""Games that exist twice: as functional environments, and as plain PettingZoo environments with the same numbers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.env.functional_protocol import FunctionalStep

WALKERS, MOST_STEPS, EDGE = 3, 9, 4
PLAYERS, MOST_TURNS = 3, 25
_WALKER_SPACES = spaces.Box(-20, 20, (2,), np.float32), spaces.Discrete(3)
_CALLER_SPACES = spaces.Discrete(2), spaces.Discrete(2)
_PLAYER_SPACES = spaces.Box(0, 8, (3,), np.float32), spaces.Discrete(2)


class Walkers:
    """Walkers on a line go home to 0, against a wind; a caller lets them walk faster. Each ends when it is home.

    A walker pays for steps to the right, the caller for calls. Not truncated by itself.
    """

    turn_based = False

    def __init__(self, num_walkers=WALKERS):
        self.groups = {"walker": [f"walker_{number}" for number in range(num_walkers)], "caller": ["caller_0"]}
        self.num_walkers = num_walkers

    def observation_space(self, agent):
        return (_CALLER_SPACES if agent == "caller_0" else _WALKER_SPACES)[0]

    def action_space(self, agent):
        return (_CALLER_SPACES if agent == "caller_0" else _WALKER_SPACES)[1]

    def reset(self, key):
        place = first_places(key, self.num_walkers)
        state = {"place": place, "walks": jnp.ones(self.num_walkers, bool)}
        return state, FunctionalStep(self.see(state), action_masks=self.masks(state))

    def step(self, key, state, actions):
        walks, (call,) = state["walks"], actions["caller"]
        moved = state["place"] + (actions["walker"] - 1) * (1 + call) + wind(key, self.num_walkers)
        place = jnp.where(walks, jnp.clip(moved, -EDGE, EDGE), state["place"])
        home = walks & (place == 0)
        after = {"place": place, "walks": walks & ~home}
        return after, FunctionalStep(
            self.see(after),
            {"walker": -(walks * jnp.abs(place)) / 4, "caller": home.sum()},
            {"walker": home, "caller": ~after["walks"].any()},
            action_masks=self.masks(after),
            infos={"cost": {"walker": walks * (actions["walker"] == 2) / 2, "caller": call / 4}},
        )

    def see(self, state):
        place = state["place"].astype(jnp.float32)
        return {"walker": jnp.stack([place, place.sum() - place], axis=1), "caller": (place.sum() % 2)[None]}

    def masks(self, state):
        place = state["place"][:, None]
        walker = jnp.concatenate([place > -EDGE, jnp.ones_like(place, bool), place < EDGE], axis=1)
        return {"walker": walker, "caller": jnp.ones((1, 2), bool)}


@functools.partial(jax.jit, static_argnums=1)
def first_places(key, count):
    return jax.random.randint(key, (count,), 1, EDGE + 1)


@functools.partial(jax.jit, static_argnums=1)
def wind(key, count):
    return jax.random.randint(key, (count,), -1, 2)


split = jax.jit(jax.random.split)
fold_in = jax.jit(jax.random.fold_in)


class WalkersAlone(ParallelEnv):
    """`Walkers`, one game in plain Python, truncated after MOST_STEPS."""

    metadata = {"name": "walkers"}  # noqa: RUF012
    state_space = spaces.Box(-np.inf, np.inf, (2 * WALKERS + 1,), np.float32)

    def __init__(self):
        self.possible_agents = [*(f"walker_{number}" for number in range(WALKERS)), "caller_0"]
        self.agents, self.render_mode = [], None
        self.observation_spaces = {
            a: (_CALLER_SPACES if "caller" in a else _WALKER_SPACES)[0] for a in self.possible_agents
        }
        self.action_spaces = {a: (_CALLER_SPACES if "caller" in a else _WALKER_SPACES)[1] for a in self.possible_agents}

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        del options
        start, self.key = split(jax.random.PRNGKey(np.uint32(seed or 0)))
        self.place = np.asarray(first_places(start, WALKERS)).tolist()
        self.agents, self.time = list(self.possible_agents), 0
        return {a: self.see(a) for a in self.agents}, {a: self.info(a) for a in self.agents}

    def see(self, agent):
        if agent == "caller_0":
            return np.int64(sum(self.place) % 2)
        own = self.place[int(agent[-1])]
        return np.array([own, sum(self.place) - own], np.float32)

    def info(self, agent, cost=None):
        info = {} if cost is None else {"cost": cost}
        legal = [True, True]
        if agent != "caller_0":
            own = self.place[int(agent[-1])]
            legal = [own > -EDGE, True, own < EDGE]
        info["action_mask"] = np.array(legal, np.int8)
        return info

    def state(self):
        return np.concatenate([np.ravel(self.see(agent)) for agent in self.possible_agents]).astype(np.float32)

    def step(self, actions):
        blown = np.asarray(wind(fold_in(self.key, self.time), WALKERS)).tolist()
        self.time += 1
        call, acted, homes = actions["caller_0"], list(actions), 0
        rewards, terminated, costs = {}, {}, {"caller_0": call / 4}
        for agent in acted[:-1]:
            number = int(agent[-1])
            moved = self.place[number] + (int(actions[agent]) - 1) * (1 + int(call)) + blown[number]
            self.place[number] = max(-EDGE, min(EDGE, moved))
            rewards[agent], terminated[agent] = -abs(self.place[number]) / 4, self.place[number] == 0
            costs[agent] = float(actions[agent] == 2) / 2
            homes += terminated[agent]
        rewards["caller_0"], terminated["caller_0"] = float(homes), all(terminated.values())
        late = self.time >= MOST_STEPS
        truncated = {agent: late and not terminated[agent] for agent in acted}
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        return (
            {agent: self.see(agent) for agent in acted},
            rewards,
            terminated,
            truncated,
            {agent: self.info(agent, costs[agent]) for agent in acted},
        )


class HotPotato:
    """Players in a circle pass a potato on, or keep it for a turn: that pays, at the others' cost, until it explodes.

    Whoever holds it then is out with -1; the last player receives 1. It must be passed on after three turns.
    Not truncated by itself.
    """

    turn_based = True
    groups = {"player": [f"player_{number}" for number in range(PLAYERS)]}  # noqa: RUF012

    def observation_space(self, agent):
        del agent
        return _PLAYER_SPACES[0]

    def action_space(self, agent):
        del agent
        return _PLAYER_SPACES[1]

    def reset(self, key):
        state = jnp.ones(PLAYERS, bool), jax.random.randint(key, (), 0, PLAYERS), jnp.zeros((), jnp.int32)
        return state, self.shown(state)

    def step(self, key, state, actions):
        plays, mover, heat = state
        keeps = actions["player"][mover] == 1
        is_mover = jnp.arange(PLAYERS) == mover
        explodes = keeps & bursts(key)
        plays_on = plays & ~(is_mover & explodes)
        last = plays_on & (plays_on.sum() == 1)
        rewards = jnp.where(keeps, jnp.where(is_mover, 0.5, -0.25), 0.0) - 1.5 * (is_mover & explodes) + last
        places = (mover + 1 + jnp.arange(PLAYERS)) % PLAYERS
        following = places[jnp.argmax(plays_on[places])]
        after = plays_on, jnp.where(keeps & ~explodes, mover, following), jnp.where(keeps & ~explodes, heat + 1, 0)
        step = self.shown(after)
        return after, step._replace(
            rewards={"player": rewards * plays}, terminated={"player": plays & (~plays_on | last)}
        )

    def shown(self, state):
        plays, mover, heat = state
        is_mover = jnp.arange(PLAYERS) == mover
        seen = jnp.stack([jnp.full(PLAYERS, heat), is_mover, jnp.full(PLAYERS, plays.sum())], axis=1)
        masks = jnp.stack([jnp.ones(PLAYERS, bool), jnp.full(PLAYERS, heat < 3)], axis=1)
        return FunctionalStep({"player": seen}, decides={"player": is_mover}, action_masks={"player": masks})


@jax.jit
def bursts(key):
    return jax.random.randint(key, (), 0, 4) == 0


@jax.jit
def first_holder(key):
    return jax.random.randint(key, (), 0, PLAYERS)


class HotPotatoAlone(AECEnv):
    """`HotPotato`, one game in plain Python, truncated after MOST_TURNS."""

    metadata = {"name": "hot_potato", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.possible_agents = [f"player_{number}" for number in range(PLAYERS)]
        self.render_mode = None

    def observation_space(self, agent):
        del agent
        return _PLAYER_SPACES[0]

    def action_space(self, agent):
        del agent
        return _PLAYER_SPACES[1]

    def reset(self, seed=None, options=None):
        del options
        start, self.key = split(jax.random.PRNGKey(np.uint32(seed or 0)))
        self.agents, self.time, self.heat = list(self.possible_agents), 0, 0
        self.playing, self.holder = list(self.agents), self.agents[int(first_holder(start))]
        self.agent_selection = self.holder
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self._show()

    def _show(self):
        mask = np.array([1, self.heat < 3], np.int8)
        self.infos = {agent: {"action_mask": mask} for agent in self.agents}

    def observe(self, agent):
        return np.array([self.heat, agent == self.holder, len(self.playing)], np.float32)

    def step(self, action):
        mover = self.agent_selection
        if self.terminations[mover] or self.truncations[mover]:
            self._was_dead_step(action)
            return
        explodes = action == 1 and bool(bursts(fold_in(self.key, self.time)))
        self.time += 1
        self._cumulative_rewards[mover] = 0.0
        self._clear_rewards()
        order = self.possible_agents[self.possible_agents.index(mover) + 1 :] + self.possible_agents
        if action == 1:
            self.rewards.update(dict.fromkeys(self.playing, -0.25))
            self.rewards[mover] = 0.5 - 1.5 * explodes
        if explodes:
            self.playing.remove(mover)
            self.terminations[mover] = True
            if len(self.playing) == 1:
                self.rewards[self.playing[0]] += 1.0
                self.terminations[self.playing[0]] = True
        if self.time >= MOST_TURNS:
            self.truncations.update({agent: not self.terminations[agent] for agent in self.agents})
        keeps = action == 1 and not explodes
        self.heat = self.heat + 1 if keeps else 0
        self.holder = mover if keeps else next(agent for agent in order if agent in self.playing)
        self.agent_selection = self.holder
        self._accumulate_rewards()
        self._show()
        self._deads_step_first()
