"""Wrappers of functional environments give the numbers of the same wrappers around the PettingZoo form."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import marlflow as mf
from marlflow.base.errors import ConfigInvalid
from marlflow.env.batched.single import as_pettingzoo
from marlflow.env.batched.versions import BatchedMaker
from marlflow.env.functional.own import batched_env
from marlflow.env.functional_protocol import FunctionalStep, FunctionalWrapper
from marlflow.env.make import Wrapper, wrapped
from marlflow.env.wrappers import shipped as wrappers
from marlflow.env.wrappers.reward_scale import measured_scales
from tests.env.functional_games import HotPotato, HotPotatoAlone, Walkers
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run


class Pushing:
    """Two carts that are pushed by -1, 0 or 1, and one by any force; all see where all are, as two kinds of vectors."""

    groups: ClassVar[Any] = {"cart": ["cart_0", "cart_1"], "lift": ["lift_0"]}
    turn_based = False

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-99.0, 99.0, (3 if agent == "lift_0" else 2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (2,), np.float32) if agent == "lift_0" else spaces.Discrete(3, start=-1)

    def reset(self, key: Any) -> Any:
        place = jax.random.uniform(key, (3,), minval=-1.0, maxval=1.0)
        return place, self.see(place)

    def see(self, place: Any) -> Any:
        return FunctionalStep({"cart": jnp.stack([place[:2], place[1::-1]]), "lift": place[None]})

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        place = state + jnp.concatenate([actions["cart"].astype(jnp.float32), actions["lift"].sum(1)])
        return place, self.see(place)._replace(rewards={"cart": place[:2], "lift": place[2:]})


class Narrow(Pushing):
    """Pushing, which leaves the bounds that it declares."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-0.5, 1.0, super().observation_space(agent).shape, np.float32)


class Teams(Pushing):
    """Pushing, in which the lift has four actions, the last of them stays, and its first two may be illegal."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 99.0, super().observation_space(agent).shape, np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4 if agent == "lift_0" else 3)

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        forces = {"cart": actions["cart"] - 1, "lift": (actions["lift"] % 3)[:, None]}
        return super().step(key, jnp.abs(state), forces)


class MaskedTeams(Teams):
    """Teams, with action masks."""

    def see(self, place: Any) -> Any:
        masks = {"cart": jnp.ones((2, 3), bool), "lift": jnp.array([[False, False, True, True]])}
        return super().see(place)._replace(action_masks=masks)


class Lifts(Pushing):
    """Pushing, in which carts too are pushed by forces, but of one number."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (2,) if agent == "lift_0" else (1,), np.float32)

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        return super().step(key, state, {**actions, "cart": actions["cart"][:, 0]})


def indicator(**settings: Any) -> Wrapper:
    return Wrapper("indicator", wrappers.agent_indicator, settings)


CASES = {
    "agent_indicator": (HotPotato, [indicator()]),
    "last_action": (Pushing, [wrappers.last_action]),
    "last_action in turn": (HotPotato, [wrappers.last_action]),
    "both": (HotPotato, [wrappers.last_action, indicator(type_only=True)]),
    "clip_observations": (Narrow, [wrappers.clip_observations]),
    "clip_observations, not of a Discrete space": (Walkers, [wrappers.clip_observations]),
    "widen_bounds": (Narrow, [wrappers.widen_bounds]),
    "padding": (Teams, [wrappers.pad_observations, wrappers.pad_actions, indicator()]),
    "padding, with masks": (MaskedTeams, [wrappers.pad_observations, wrappers.pad_actions]),
    "padding of Box actions": (Lifts, [wrappers.pad_observations, wrappers.pad_actions]),
    "reward_scale": (Walkers, [Wrapper("scale", wrappers.reward_scale, {"scale": 2.0})]),
    "reward_scale, with arguments by functools.partial": (Walkers, [partial(wrappers.reward_scale, scale=2.0)]),
    "reward_scale, measured": (HotPotato, [Wrapper("scale", wrappers.reward_scale, {"env_steps": 60})]),
}


QUICK = (
    "padding, with masks",
    "clip_observations",
    "widen_bounds",
    "last_action",
    "both",
    "reward_scale, with arguments by functools.partial",
    "reward_scale, measured",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CASES],
)
def test_wrapped_environments_are_wrapped_pettingzoo_environments(name: str) -> None:
    make, of = CASES[name]
    inside = as_pettingzoo(wrapped(batched_env(1, make, max_env_steps=30), of, "it"))
    around = wrapped(as_pettingzoo(batched_env(1, make, max_env_steps=30)), of, "it")
    for agent in around.possible_agents:
        assert inside.observation_space(agent) == around.observation_space(agent)
    random = np.random.default_rng(0)
    for seed in range(3):
        told = [env.reset(seed=seed) for env in (inside, around)]
        if hasattr(around, "agent_selection"):
            in_turn(inside, around, random)
            continue
        assert_same(*(observations for observations, _ in told))
        while around.agents:
            actions = {agent: chosen(around, agent, told[1][1][agent], random) for agent in around.agents}
            told = [env.step(actions)[::4] for env in (inside, around)]
            assert_same(*(observations for observations, _ in told))
            assert_same(*({agent: info.get("action_mask") for agent, info in infos.items()} for _, infos in told))
        assert not inside.agents


def test_actions_that_padding_adds_are_illegal_where_actions_are_masked() -> None:
    env = as_pettingzoo(wrapped(batched_env(1, MaskedTeams, max_env_steps=3), [wrappers.pad_actions], "it"))
    _, infos = env.reset(seed=0)
    masks = {agent: info["action_mask"].tolist() for agent, info in infos.items()}
    assert masks == {"cart_0": [1, 1, 1, 0], "cart_1": [1, 1, 1, 0], "lift_0": [0, 0, 1, 1]}


def chosen(env: Any, agent: str, info: Any, random: Any) -> Any:
    space = env.action_space(agent)
    if isinstance(space, spaces.Box):
        return random.uniform(space.low, space.high).astype(np.float32)
    mask = info.get("action_mask")
    legal = np.arange(space.n) if mask is None else np.flatnonzero(mask)
    return int(random.choice(legal)) + int(space.start)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for agent, seen in theirs.items():
        np.testing.assert_array_equal(ours[agent], seen)


def in_turn(inside: Any, around: Any, random: Any) -> None:
    while around.agents:
        agent = around.agent_selection
        assert inside.agent_selection == agent
        np.testing.assert_array_equal(inside.observe(agent), around.observe(agent))
        assert inside.rewards[agent] == pytest.approx(around.rewards[agent], rel=1e-6)
        is_over = around.terminations[agent] or around.truncations[agent]
        action = None if is_over else chosen(around, agent, around.infos[agent], random)
        for env in (inside, around):
            env.step(action)


class Doubled(FunctionalWrapper):
    """All rewards twice."""

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        state, step = self.env.step(key, state, actions)
        return state, step._replace(rewards={name: 2 * jnp.asarray(of) for name, of in step.rewards.items()})


def doubled(env: Any) -> Any:
    raise AssertionError("its functional form is to be taken")


doubled.functional = Doubled  # type: ignore[attr-defined]


def test_a_wrapper_of_ones_own_has_a_functional_form_and_rollouts_stay_compiled(tmp_path: Any) -> None:
    returns = {}
    for case, of in {"once": (), "twice": (doubled,)}.items():
        run = small_run(
            env=mf.Env("functional", {"make": HotPotato, "max_env_steps": 20}, wrappers=of, num_envs=4),
            policies={"player": mf.Policy(replace(SMALL_PPO, batch_agent_steps=10_000), SMALL)},
            mapping=None,
            rollouts=mf.Rollouts(num_workers=1, compiled=True),
            stop=mf.Stop(env_steps=400),
        )
        returns[case] = mf.train(run, tmp_path / case).metrics["policies"]["player"]["return_mean"]
    assert returns["twice"] == pytest.approx(2 * returns["once"], rel=1e-6)


def test_equal_wrappers_share_what_is_compiled() -> None:
    make = BatchedMaker(partial(batched_env, make=HotPotato), {}, (indicator(),))
    one, other = make(1), make(3)
    assert one.calls is other.calls  # type: ignore[attr-defined]
    assert isinstance(one.observation_space("player_0"), spaces.Box)


class Counting:
    """Two players in turns; each move adds 3 or 4 (only 3 at 0), and a sum of 10 or more pays and ends the game."""

    groups: ClassVar[Any] = {"player": ["player_0", "player_1"]}
    turn_based = True

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 99.0, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2, start=3)

    def reset(self, key: Any) -> Any:
        state = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
        # In another type than later ones, which is allowed.
        step = self.see(state)
        return state, step._replace(action_masks={"player": step.action_masks["player"].astype(jnp.int8)})

    def see(self, state: Any) -> Any:
        total, moves = state
        seen = jnp.broadcast_to(jnp.stack([total, moves]).astype(jnp.float32), (2, 2))
        legal = jnp.broadcast_to(jnp.stack([jnp.asarray(True), total > 0]), (2, 2))
        return FunctionalStep(
            {"player": seen}, decides={"player": jnp.arange(2) == moves % 2}, action_masks={"player": legal}
        )

    def step(self, key: Any, state: Any, actions: Any) -> Any:
        total, moves = state
        after = total + actions["player"][moves % 2].astype(jnp.int32), moves + 1
        over = after[0] >= 10
        return after, self.see(after)._replace(rewards={"player": over * 1.0}, terminated={"player": over})


def test_a_random_opening_is_of_legal_moves_all_lengths_are_equally_likely_and_nothing_happens_in_it() -> None:
    env = wrapped(batched_env(1200, Counting, max_env_steps=30), [partial(wrappers.random_opening, moves=3)], "it")
    games = np.arange(1200)
    seen, again = (np.asarray(env.reset(games, games).observations["player"])[:, 0] for _ in range(2))
    np.testing.assert_array_equal(seen, again)
    sums, counts = np.unique(seen, axis=0, return_counts=True)
    expected = {(0, 0): 1 / 4, (3, 1): 1 / 4, (6, 2): 1 / 8, (7, 2): 1 / 8, (9, 3): 1 / 16}
    # Three moves with a sum of 10 or 11 end the game, which then begins without an opening.
    expected[0, 0] += 3 / 16
    assert {tuple(pair) for pair in sums.astype(int).tolist()} == set(expected)
    for pair, count in zip(sums.astype(int).tolist(), counts, strict=True):
        share = expected[tuple(pair)]
        # Six standard deviations.
        assert abs(count / 1200 - share) < 6 * (share * (1 - share) / 1200) ** 0.5, pair


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        (wrappers.joint_state, "wrapper joint_state of environment .* has no form for functional environments, as"),
        (wrappers.agent_indicator, "wrapper agent_indicator of environment .*'walker_0' sees .*put padding before it"),
        (
            wrappers.random_opening,
            "wrapper random_opening of .*: it takes an AEC environment, in which agents take turns",
        ),
        (
            Wrapper("scale", wrappers.reward_scale, {"scale": -1}),
            "wrapper scale of .*: scale must be more than 0, not -1",
        ),
    ],
)
def test_what_cannot_wrap_is_refused(of: Any, problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem):
        wrapped(batched_env(1, Walkers), [of], "it")


@pytest.mark.slow
def test_a_run_learns_from_wrapped_environments(tmp_path: Any) -> None:
    run = small_run(
        env=mf.Env("functional", {"make": Pushing, "max_env_steps": 20}, wrappers=[wrappers.last_action], num_envs=4),
        policies={"cart": mf.Policy(SMALL_PPO, SMALL), "lift": mf.Policy(mf.Random(), SMALL)},
        mapping=None,
        rollouts=mf.Rollouts(num_workers=1, compiled=True),
        stop=mf.Stop(env_steps=400),
    )
    assert mf.train(run, tmp_path).metrics["learners"]["cart"]["updates"] > 0


class OneWithMoreActions(HotPotatoAlone):
    """Hot potato, whose player_0 has two actions more, which are illegal."""

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4) if agent == "player_0" else super().action_space(agent)

    def _show(self) -> None:
        super()._show()
        if "player_0" in self.infos:
            self.infos["player_0"] = {"action_mask": np.array([1, self.heat < 3, 0, 0], np.int8)}


def test_actions_that_padding_adds_are_illegal_on_each_turn() -> None:
    env: Any = wrappers.pad_actions(OneWithMoreActions())
    random = np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        turns = 0
        while env.agents:
            agent, mask = env.agent_selection, env.infos[env.agent_selection]["action_mask"]
            assert env.action_space(agent).n == 4
            assert (len(mask), *mask[2:]) == (4, 0, 0)
            is_over = env.terminations[agent] or env.truncations[agent]
            env.step(None if is_over else int(random.choice(np.flatnonzero(mask))))
            turns += 1
        assert turns > 3


class Drawn(FunctionalWrapper):
    """Pictures of an environment without."""

    def render(self, state: Any) -> Any:
        return np.full((8, 8, 3), 200, np.uint8)


def drawn(env: Any) -> Any:
    return env


drawn.functional = Drawn  # type: ignore[attr-defined]


def test_pictures_that_a_wrapper_adds_are_drawn() -> None:
    bare = batched_env(1, Walkers, render_mode="rgb_array")
    assert bare.metadata["render_modes"] == []
    env = bare.with_wrappers([drawn])
    assert env.metadata["render_modes"] == ["rgb_array"]
    env.reset(np.zeros(1, int), np.zeros(1, int))
    picture = env.render()
    assert picture is not None
    assert picture.shape == (8, 8, 3)


def test_the_scale_of_rewards_is_measured_in_episodes_of_the_limit() -> None:
    games = {limit: batched_env(1, Walkers, max_env_steps=limit) for limit in (3, 9)}
    found = {}
    for limit, game in games.items():
        wrapped_game = game.with_wrappers([Wrapper("scale", wrappers.reward_scale, {"env_steps": 60})])
        found[limit] = wrapped_game.calls.env._scales  # type: ignore[attr-defined]
        expected = measured_scales(batched_env(1, Walkers, max_env_steps=limit), 0.99, 60, "agent")
        for name, agents in game.groups.items():
            assert found[limit][name].tolist() == pytest.approx([expected[agent] for agent in agents])
    assert found[3]["walker"].tolist() != pytest.approx(found[9]["walker"].tolist())


class Switches:
    """Agents press any of two switches; the second one is locked."""

    turn_based = False
    groups: ClassVar[dict[str, list[str]]] = {"agent": ["agent_0", "agent_1"]}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 20.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.MultiBinary(2)

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        return jnp.zeros(()), self._shown(jnp.zeros(()))

    def step(self, key: Any, state: Any, actions: Any) -> tuple[Any, FunctionalStep]:
        pressed = actions["agent"]
        locked = pressed[:, 1] == 1
        return state + 1, self._shown(state + 1)._replace(rewards={"agent": jnp.where(locked, -100.0, pressed[:, 0])})

    def _shown(self, time: Any) -> FunctionalStep:
        legal = jnp.asarray([[1, 1, 1, 0]] * 2, bool)
        return FunctionalStep({"agent": jnp.full((2, 1), time, jnp.float32)}, action_masks={"agent": legal})


@pytest.mark.parametrize("compiled", [False, True])
def test_actions_of_multi_binary_spaces_may_be_masked(compiled: bool, tmp_path: Path) -> None:
    experiment = small_run(
        env=mf.Env("functional", {"make": Switches, "max_env_steps": 5}, num_envs=4),
        policies={"agent": mf.Policy(SMALL_PPO, SMALL)},
        mapping=None,
        rollouts=mf.Rollouts(1, 40, compiled=compiled),
        stop=mf.Stop(env_steps=80),
    )
    metrics = mf.train(experiment, tmp_path).metrics
    assert metrics["faults"]["env_errors"] == 0
    assert 0 < metrics["policies"]["agent"]["return_mean"] <= 5
