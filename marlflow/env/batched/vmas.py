"""Scenarios of VMAS, many at once: physics in two dimensions, vectorized in torch.

VMAS: Bettini et al., "VMAS: A Vectorized Multi-Agent Simulator for Collective Robot Learning" (DARS 2022,
arXiv:2207.03530). `pip install 'marlflow[vmas]'`; VMAS is under the GPL (version 3).
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

# gym, from which VMAS takes its spaces, warns on every import that it is not maintained.
with contextlib.redirect_stderr(io.StringIO()):
    import vmas

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.env.batched.protocol import BatchedStep, groups_of
from marlflow.env.batched.row_tensors import RowTensors, shares_state

_PROBES = 2, 3


class VmasEnv:
    """`num_envs` environments of a VMAS scenario. Agents of one name, without its number, and spaces are a group.

    scenario: a name, as in `vmas.scenarios`.
    parameters: arguments of the scenario, such as `{"n_agents": 4}`.
    max_env_steps: env steps after which all agents are truncated; None: no limit. `scenario.done()` terminates all.
    continuous_actions: Box actions, of forces; False: Discrete, of directions.
    episode_seeds: whether each episode is drawn from its own seed alone, by a reset of its own (1 to 3 ms each). Else
        all that begin in a step are drawn at once, from all their seeds; then `metadata["reproducible"]` is False.

    `state()` concatenates all agents' observations. Raises ConfigInvalid if an argument is wrong.
    """

    turn_based = False

    def __init__(
        self,
        num_envs: int,
        scenario: str = "balance",
        parameters: Mapping[str, Any] | None = None,
        max_env_steps: int | None = 100,
        continuous_actions: bool = True,
        episode_seeds: bool = False,
    ) -> None:
        _check(scenario, max_env_steps)
        self.num_envs = num_envs
        made = [
            _make(scenario, count, parameters or {}, max_env_steps, continuous_actions)
            for count in (num_envs, _PROBES[num_envs == _PROBES[0]])
        ]
        self._env, probe = made
        # Both are stepped.
        draws_in_steps = _step_draws(self._env) | _step_draws(probe)
        self._rows = RowTensors(self._env, num_envs, probe, probe.num_envs)
        self._resets_singly = episode_seeds or shares_state(
            probe, probe.num_envs, lambda seed: probe.reset(seed=seed, return_observations=False)
        )
        self.metadata = {"name": f"vmas_{scenario}", "reproducible": episode_seeds and not draws_in_steps}
        self.possible_agents = [agent.name for agent in self._env.agents]
        pairs = zip(self._env.observation_space, self._env.action_space, strict=True)
        self._spaces = {
            agent: (_converted(seen), _converted(done))
            for agent, (seen, done) in zip(self.possible_agents, pairs, strict=True)
        }
        self.groups = groups_of(self._spaces)
        self._slots = {
            name: [self.possible_agents.index(agent) for agent in agents] for name, agents in self.groups.items()
        }
        self._seen: list[torch.Tensor] = []
        if all(isinstance(seen, spaces.Box) for seen, _ in self._spaces.values()):
            width = sum(int(np.prod(seen.shape or ())) for seen, _ in self._spaces.values())
            self.state_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    @torch.no_grad()
    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        env = self._env
        if self._resets_singly:
            for index, seed in zip(envs.tolist(), seeds.tolist(), strict=True):
                _seed(env, seed)
                env.reset_at(index, return_observations=False)
        else:
            # VMAS draws all rows from one generator. A seed of all these seeds needs no memory of earlier episodes.
            _seed(env, int(np.random.SeedSequence(seeds.tolist()).generate_state(1)[0]))
            self._rows.reset(envs, lambda: env.reset(return_observations=False))
        return self._look()

    def _look(self) -> BatchedStep:
        self._seen = self._env.get_from_scenario(True, False, False, False)[0]
        return BatchedStep(self._stacked(self._seen))

    @torch.no_grad()
    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        of_agents: list[torch.Tensor] = [torch.empty(0)] * len(self.possible_agents)
        for name, slots in self._slots.items():
            shared = torch.from_numpy(actions[name])
            for position, slot in enumerate(slots):
                of_agents[slot] = shared[:, position].reshape(self.num_envs, -1)
        self._seen, rewards, terminated, truncated, _ = self._env.step(of_agents)
        return BatchedStep(
            self._stacked(self._seen),
            self._stacked(rewards),
            self._for_all(terminated),
            self._for_all(truncated),
        )

    def _stacked(self, of_agents: Sequence[torch.Tensor]) -> dict[str, Array]:
        return {name: torch.stack([of_agents[i] for i in at], dim=1).numpy() for name, at in self._slots.items()}

    def _for_all(self, flags: torch.Tensor) -> dict[str, Array]:
        column = flags.numpy().astype(bool, copy=False)[:, None]
        return {name: np.broadcast_to(column, (self.num_envs, len(at))) for name, at in self._slots.items()}

    def state(self) -> Array:
        """Return all agents' observations side by side, float32 [B, sum of their sizes]."""
        joined: Array = torch.cat([seen.reshape(self.num_envs, -1) for seen in self._seen], dim=1).numpy()
        return joined

    def get_state(self, envs: Array) -> dict[str, Array]:
        return self._rows.get(envs)

    @torch.no_grad()
    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._rows.set(envs, state)
        return self._look()

    def close(self) -> None:
        """Do nothing."""


def _check(scenario: str, max_env_steps: int | None) -> None:
    known = sorted({*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios})
    if scenario not in known:
        raise ConfigInvalid([f"VMAS has no scenario {scenario!r}{meant(scenario, known)}"])
    if max_env_steps is not None and (type(max_env_steps) is not int or max_env_steps < 1):
        problem = f"max_env_steps must be a whole number from 1, or null for no limit, not {max_env_steps!r}"
        raise ConfigInvalid([problem])


def _make(
    scenario: str, num_envs: int, parameters: Mapping[str, Any], max_env_steps: int | None, continuous: bool
) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = vmas.make_env(
            scenario,
            num_envs,
            continuous_actions=continuous,
            max_steps=max_env_steps,
            seed=0,
            clamp_actions=True,
            terminated_truncated=True,
            **parameters,
        )
    for warning in caught:
        # An argument that the scenario does not have is ignored with this warning.
        if "not used by the scenario" in str(warning.message):
            raise ConfigInvalid([f"scenario {scenario}: {warning.message} Remove it from env.parameters"])
    return env


def _step_draws(env: Any) -> bool:
    """Step once, so that all tensors exist; return whether that drew random numbers."""
    _seed(env, 0)
    before = _random_state(env)
    with torch.no_grad():
        env.step([torch.zeros(env.num_envs, env.get_agent_action_size(agent)) for agent in env.agents])
    return _random_state(env) != before


def _seed(env: Any, seed: int) -> None:
    """Seed the random numbers of all VMAS environments in this process, as `env.seed` does.

    That calls torch.manual_seed, which on every call keeps a traceback for each kind of GPU that is not in use.
    """
    generators = torch.Generator().manual_seed(seed), np.random.RandomState(seed), random.Random(seed)
    of_torch, of_numpy, of_python = generators
    env.vmas_random_state[:] = [of_torch.get_state(), of_numpy.get_state(), of_python.getstate()]


def _random_state(env: Any) -> tuple[list[int], str, object]:
    of_torch, of_numpy, of_python = env.vmas_random_state
    return of_torch.tolist(), repr((of_numpy[1].tolist(), of_numpy[2:])), of_python


def _converted(space: Any) -> spaces.Space[Any]:
    """Return gymnasium's version of a space of gym."""
    kind = type(space).__name__
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    return spaces.Dict({key: _converted(part) for key, part in space.spaces.items()})
