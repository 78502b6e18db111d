"""A shield: actions that a rule calls unsafe are masked, so no agent takes one, and no target of a learner uses one.

Alshiekh et al., 2018, "Safe Reinforcement Learning via Shielding", arXiv:1708.08611: a rule restricts the actions
before the agent chooses (preemptive shielding), or a correction replaces the chosen actions (post-posed shielding).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

from marlflow.base.arrays import Array, copied
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components, describe_space
from marlflow.env.agents import matching_agents
from marlflow.env.masking import MASK, MaskedView, ShownMasks, as_mask

Sees: TypeAlias = Literal["observation", "env"]
WhenNone: TypeAlias = Literal["error", "all", "least"]


def shield(
    env: Any,
    safe: Callable[..., Any] | None = None,
    sees: Sees = "observation",
    when_none: WhenNone = "error",
    agents: str = "*",
    post: Callable[..., Any] | None = None,
) -> Any:
    """Mask the actions of `agents` (a pattern) that are not safe: the mask becomes mask and safe.

    `safe(observation, agent)`, or with `sees="env"` `safe(env, agent)`, returns bool [actions], or risks as floats,
    where a risk of at most 0 is safe; for MultiDiscrete actions, the values of all components, concatenated.
    `when_none` decides where no legal action is safe: an error, all legal actions, or the actions with the least risk.

    `post(observations, actions)`, or `post(env, actions)`, returns the joint action to take instead of the one that the
    agents chose, in Parallel environments: rows have the chosen actions. Raises ConfigInvalid for settings and
    functions that do not fit, which it tries on one reset.
    """
    problems = [] if sees in get_args(Sees) else [f"sees must be observation or env, not {sees!r}"]
    if when_none not in get_args(WhenNone):
        problems.append(f"when_none must be error, all or least, not {when_none!r}")
    if safe is None and post is None:
        problems.append("set safe, the import path of a function that says which actions are safe, or post")
    if post is not None and isinstance(env, AECEnv):
        problems.append("post corrects joint actions, of Parallel environments; here agents take turns, so use safe")
    if problems:
        raise ConfigInvalid(problems)
    shielded = matching_agents(env, agents)
    if safe is not None:
        _refuse_boxes(env, shielded)
    rule = None if safe is None else SafetyRule(safe, sees, when_none)
    if isinstance(env, AECEnv):
        assert rule is not None  # without post, safe is set
        wrapper: Any = ShieldAEC(env, rule, shielded)
    else:
        wrapper = ShieldParallel(env, rule, shielded, post, sees)
    # So that a function with a wrong signature or result is refused before a run.
    wrapper.reset(seed=0)
    return wrapper


def _refuse_boxes(env: Any, agents: Collection[str]) -> None:
    refused = [agent for agent in agents if not isinstance(env.action_space(agent), DISCRETE_KINDS)]
    if refused:
        space = describe_space(env.action_space(refused[0]))
        raise ConfigInvalid(
            [
                f"agent {refused[0]!r} has {space} actions, and masks are for Discrete, MultiDiscrete and MultiBinary "
                "ones: leave it out by agents=<pattern>, or correct joint actions by post"
            ]
        )


class SafetyRule(NamedTuple):
    """A function that says which actions are safe, its first argument, and the choice where no action is."""

    safe: Callable[..., Any]
    sees: Sees
    when_none: WhenNone

    def allowed(self, seen: Any, agent: str, space: spaces.Space[Any], legal: Array) -> Array:
        """Return the actions that are legal and safe, bool [width]. Raises RuntimeError if none is, by `when_none`."""
        answer = self._answer(seen, agent, len(legal))
        safe = answer if answer.dtype == np.bool_ else answer <= 0.0
        both: Array = legal & safe
        choices = choices_of(space)
        parts = components(both[None], choices)
        if all(part.any() for part in parts) or not legal.any():
            return both
        if self.when_none == "error":
            raise RuntimeError(
                f"no legal action of {agent!r} is safe: correct the function safe, or choose by when_none=all or "
                "when_none=least which actions are left"
            )
        risks = components(answer[None], choices)
        remaining = [
            part[0] if part.any() else self._remaining(one[0], risk[0])
            for part, one, risk in zip(parts, components(legal[None], choices), risks, strict=True)
        ]
        return np.concatenate(remaining)

    def _remaining(self, legal: Array, risks: Array) -> Array:
        if self.when_none == "all" or not legal.any():
            return legal
        least: Array = legal & (risks == risks[legal].min())
        return least

    def _answer(self, seen: Any, agent: str, width: int) -> Array:
        answer = np.asarray(self.safe(seen, agent))
        expected = f"bool [{width}], or float [{width}] of risks"
        if answer.shape != (width,) or not (answer.dtype == np.bool_ or np.issubdtype(answer.dtype, np.floating)):
            found = f"{answer.dtype} {list(answer.shape)}"
            raise ConfigInvalid([f"safe returned {found} for agent {agent!r}; it must return {expected}"])
        if self.when_none == "least" and answer.dtype == np.bool_:
            raise ConfigInvalid([f"when_none=least compares risks, so safe must return float [{width}], not bool"])
        if np.isnan(answer).any():
            raise ConfigInvalid([f"safe returned NaN for agent {agent!r}"])
        return answer


class ShieldParallel(BaseParallelWrapper):
    """Masks unsafe actions in a Parallel environment, and corrects joint actions by `post`.

    `actions_corrected` counts the actions that were replaced.
    """

    def __init__(
        self,
        env: Any,
        rule: SafetyRule | None,
        agents: Collection[str],
        post: Callable[..., Any] | None,
        sees: Sees,
    ) -> None:
        super().__init__(env)
        self._rule, self._post, self._sees = rule, post, sees
        self._views = {}
        if rule is not None:
            self._views = {agent: MaskedView(env.observation_space(agent), env.action_space(agent)) for agent in agents}
        self._observations: Mapping[str, Any] = {}
        self.actions_corrected, self.corrects = 0, post is not None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._observations = observations
        return self._masked(observations, infos, {})

    def step(self, actions: Mapping[str, Any]) -> Any:
        taken = actions if self._post is None else self._corrected(self._post, actions)
        observations, rewards, terminations, truncations, infos = self.env.step(taken)
        self._observations = observations
        observations, infos = self._masked(observations, infos, terminations)
        return observations, rewards, terminations, truncations, infos

    def _masked(
        self, observations: Mapping[str, Any], infos: Mapping[str, Any], terminations: Mapping[str, bool]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        # Copies, because an environment may hand out the same dicts at every step.
        observations, infos = dict(observations), dict(infos)
        for agent, observation in observations.items():
            # A terminated agent chooses nothing, and its rows are bootstrapped with 0.
            if agent not in self._views or terminations.get(agent):
                continue
            view, info = self._views[agent], infos.get(agent)
            assert self._rule is not None  # else there are no views
            seen = self.env if self._rule.sees == "env" else view.bare(observation)
            allowed = self._rule.allowed(seen, agent, self.env.action_space(agent), view.legal(observation, info))
            if view.is_inside:
                observations[agent] = view.inside(observation, allowed)
            else:
                infos[agent] = {**(info or {}), MASK: as_mask(allowed)}
        return observations, infos

    def _corrected(self, post: Callable[..., Any], actions: Mapping[str, Any]) -> Mapping[str, Any]:
        seen = self.env if self._sees == "env" else self._observations
        # Copies, because `post` may change them in place.
        corrected = post(seen, {agent: copied(action) for agent, action in actions.items()})
        if not isinstance(corrected, Mapping) or set(corrected) != set(actions):
            raise ConfigInvalid(
                [f"post returned {corrected!r:.200}; it must return an action for each of {[*actions]}"]
            )
        for agent, action in corrected.items():
            space = self.env.action_space(agent)
            if not space.contains(action):
                raise ConfigInvalid([f"post returned {action!r:.200} for agent {agent!r}, which is not in {space}"])
            self.actions_corrected += not np.array_equal(action, actions[agent])
        return {agent: corrected[agent] for agent in actions}


class ShieldAEC(BaseWrapper):
    """Masks unsafe actions of the agent whose turn it is, in an AEC environment."""

    def __init__(self, env: Any, rule: SafetyRule, agents: Collection[str]) -> None:
        super().__init__(env)
        self._rule = rule
        self._views = {agent: MaskedView(env.observation_space(agent), env.action_space(agent)) for agent in agents}
        # The agent to act and its observation, so that the rule is asked once per turn.
        self._observed: tuple[str | None, Any] = (None, None)
        self._shown = ShownMasks(env)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self._shown.restore()
        self.env.reset(seed=seed, options=options)
        for agent in self.env.agents:
            # Adapters expect later masks only from agents with a mask in the first infos.
            if agent in self._views and not self._views[agent].is_inside:
                self._shown.show(agent, as_mask(self._views[agent].legal(None, self.env.infos[agent])))
        self._shield()

    def step(self, action: Any) -> None:
        self._shown.restore()
        self.env.step(action)
        self._shield()

    def _shield(self) -> None:
        self._observed = (None, None)
        agent = self.env.agent_selection if self.env.agents else None
        if agent is None or agent not in self._views or self.env.terminations[agent]:
            return
        observation, view = self.env.observe(agent), self._views[agent]
        if observation is None:
            return
        seen = self.env if self._rule.sees == "env" else view.bare(observation)
        legal = view.legal(observation, self.env.infos.get(agent))
        allowed = self._rule.allowed(seen, agent, self.env.action_space(agent), legal)
        if view.is_inside:
            # A copy, because the environment may fill the same arrays when it is asked for another agent's.
            self._observed = (agent, copied(view.inside(observation, allowed)))
        else:
            self._shown.show(agent, as_mask(allowed))

    def observe(self, agent: str) -> Any:
        return self._observed[1] if agent == self._observed[0] else self.env.observe(agent)
