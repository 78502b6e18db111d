"""Environments of JaxMARL step as in JaxMARL itself, without its own resets, and each episode is its seed's."""

import subprocess
import sys

import numpy as np
import pytest

from tests.env.optional import is_installed

if not is_installed("jaxmarl"):
    pytest.skip("JaxMARL is not installed: pip install 'marlflow[jaxmarl]'", allow_module_level=True)

import jax
from gymnasium import spaces

import marlflow as mf
from marlflow.env.functional.jaxmarl import batched_env
from marlflow.env.functional.jaxmarl_import import make
from tests.driver.test_batched_runs import reports
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

EVERY = np.arange(4)
SMALL_BATTLE = {"num_allies": 2, "num_enemies": 3, "max_steps": 14}
CASES = [
    ("MPE_simple_spread_v3", {}),
    ("MPE_simple_tag_v3", {}),
    ("MPE_simple_speaker_listener_v4", {"max_steps": 7}),
    ("switch_riddle", {}),
    ("HeuristicEnemySMAX", SMALL_BATTLE),
]
# What is computed for many at once is rounded otherwise.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def actions_of(env, random, masks=None):
    chosen = {}
    for name, agents in env.groups.items():
        space, shape = env.action_space(agents[0]), (env.num_envs, len(agents))
        if masks:
            legal = np.asarray(masks[name])
            assert legal.any(axis=-1).all()
            chosen[name] = (random.random(legal.shape) * legal).argmax(axis=-1)
        elif isinstance(space, spaces.Discrete):
            chosen[name] = random.integers(0, space.n, shape)
        else:
            chosen[name] = random.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)
    return chosen


def columns(step, at):
    """Every number of the environments `at`."""
    kinds = (step.observations, step.rewards, step.terminated, step.truncated, step.action_masks)
    return [np.asarray(kind[name])[at] for kind in kinds for name in sorted(kind)]


def assert_same(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 0.0, "atol": 0.0, **tolerance})


class Alone:
    """One environment of JaxMARL, played by its own step_env."""

    def __init__(self, env, seed):
        self.env, self.t = env, 0
        start, self.key = jax.random.split(jax.random.PRNGKey(seed))
        self.seen, self.state = env.reset(start)

    def step(self, actions):
        key = jax.random.fold_in(self.key, self.t)
        self.t, self.before, self.actions = self.t + 1, self.state, actions
        self.seen, self.state, self.rewards, self.dones, _ = self.env.step_env(key, self.state, actions)


def ends_really(name, one, agent):
    """Whether the rules of the game end this agent's episode, without a limit of time."""
    if name == "HeuristicEnemySMAX":
        alive = np.asarray(one.state.state.unit_alive)
        return not (alive[int(agent.removeprefix("ally_"))] and alive[:2].any() and alive[2:].any())
    if name == "switch_riddle":
        # Only who is in the room can tell.
        in_room = f"agent_{int(one.before.agent_in_room)}"
        return int(one.actions[in_room]) == one.env.game_actions["TELL"]
    return False


class Beside:
    """`env` and as many single environments of JaxMARL, which begin with the same seeds and take the same actions."""

    def __init__(self, env, direct, name):
        self.env, self.direct, self.name = env, direct, name
        self.place = {agent: (group, at) for group, agents in env.groups.items() for at, agent in enumerate(agents)}
        self.alone = [Alone(direct, 5 + row) for row in range(env.num_envs)]
        self.shown, self.next_seed, self.kinds = env.reset(EVERY, EVERY + 5), 9, set()

    def compare_views(self):
        masks = self.shown.action_masks
        for row, one in enumerate(self.alone):
            legal = self.direct.get_avail_actions(one.state) if masks else {}
            for agent, (group, at) in self.place.items():
                np.testing.assert_allclose(self.shown.observations[group][row, at], one.seen[agent], **CLOSE)
                if masks:
                    np.testing.assert_array_equal(masks[group][row, at], np.asarray(legal[agent]) != 0)

    def step(self, actions):
        """Step all and compare rewards and ends; return the rows that are over."""
        self.shown = self.env.step(actions)
        for row, one in enumerate(self.alone):
            chosen = {agent: actions[group][row, at] for agent, (group, at) in self.place.items()}
            one.step(chosen)
            for agent, (group, at) in self.place.items():
                np.testing.assert_allclose(self.shown.rewards[group][row, at], one.rewards[agent], **CLOSE)
                self.compare_end(
                    one, agent, (self.shown.terminated[group][row, at], self.shown.truncated[group][row, at])
                )
        return [row for row, one in enumerate(self.alone) if one.dones["__all__"]]

    def compare_end(self, one, agent, found):
        done = bool(one.dones[agent] or one.dones["__all__"])
        real = done and ends_really(self.name, one, agent)
        assert tuple(map(bool, found)) == (real, done and not real)
        self.kinds |= {"terminated"} if real else {"truncated"} if done else set()

    def restart(self, rows):
        seeds = self.next_seed + np.arange(len(rows))
        self.next_seed += len(rows)
        self.shown = self.env.reset(np.array(rows), seeds)
        for row, seed in zip(rows, seeds.tolist(), strict=True):
            self.alone[row] = Alone(self.direct, seed)


@pytest.mark.parametrize(("name", "parameters"), CASES, ids=[name for name, _ in CASES])
def test_steps_and_ends_are_those_of_jaxmarl(name, parameters):
    env, direct = batched_env(4, name, parameters), make(name, **parameters)
    assert isinstance(env, mf.BatchedEnv)
    assert isinstance(env, mf.SnapshotEnv)
    both, random = Beside(env, direct, name), np.random.default_rng(0)
    both.compare_views()
    for _ in range(2 * direct.max_steps + 4):
        over = both.step(actions_of(env, random, both.shown.action_masks))
        # The views of those that are over are their final ones.
        both.compare_views()
        if over:
            both.restart(over)
    assert both.kinds == ({"truncated"} if name.startswith("MPE") else {"terminated", "truncated"})


def test_a_reset_leaves_the_other_environments_alone():
    env, undisturbed = (batched_env(12, "MPE_simple_spread_v3") for _ in range(2))
    random, rows = np.random.default_rng(1), np.arange(12)
    others = [0, 2, 11]
    for one in (env, undisturbed):
        one.reset(rows, rows)
    for number in range(6):
        actions = actions_of(env, random)
        step, other = env.step(actions), undisturbed.step(actions)
        assert_same(columns(step, others), columns(other, others))
        if number == 1:
            env.reset(np.array([1, 3]), np.array([7, 8]))
        if number == 3:
            env.reset(np.setdiff1d(rows, others), np.arange(9))
    assert not np.array_equal(columns(step, [1])[0], columns(other, [1])[0])


def test_an_episode_is_its_seeds_in_any_batch_and_compiled_once():
    one, many = batched_env(1, "MPE_simple_tag_v3"), batched_env(4, "MPE_simple_tag_v3")
    alone, among = [one.reset(np.array([0]), np.array([7]))], [many.reset(EVERY, np.array([1, 2, 7, 3]))]
    random = np.random.default_rng(3)
    before = many.calls.step.jitted._cache_size()
    for _ in range(10):
        actions = actions_of(many, random)
        among.append(many.step(actions))
        alone.append(one.step({name: chosen[2:3] for name, chosen in actions.items()}))
    for ours, theirs in zip(among, alone, strict=True):
        assert_same(columns(ours, [2]), columns(theirs, [0]), **CLOSE)
    assert many.calls.step.jitted._cache_size() - before <= 2
    assert many.calls is one.calls


def test_resets_of_any_number_share_few_compiled_calls():
    env = batched_env(20, "MPE_simple_spread_v3", {"num_agents": 2, "num_landmarks": 2})
    for count in (20, *range(1, 20)):
        rows = np.arange(count)
        first, again = (env.reset(rows, rows + count).observations["agent"][:count] for _ in range(2))
        np.testing.assert_array_equal(first, again)
    assert env.calls.reset.jitted._cache_size() == 2  # of 8 and 20 rows


def test_agents_with_other_spaces_are_other_groups_and_masks_are_boolean():
    tag = batched_env(2, "MPE_simple_tag_v3")
    assert tag.groups == {"adversary": ["adversary_0", "adversary_1", "adversary_2"], "agent": ["agent_0"]}
    assert tag.observation_space("agent_0").shape == (14,)
    battle = batched_env(2, "HeuristicEnemySMAX", SMALL_BATTLE)
    masks = battle.reset(np.arange(2), np.arange(2)).action_masks["ally"]
    assert (masks.dtype, masks.shape) == (np.dtype(bool), (2, 2, battle.action_space("ally_0").n))


def test_the_state_is_the_world_state_or_all_observations():
    battle = batched_env(2, "HeuristicEnemySMAX", SMALL_BATTLE)
    battle.reset(np.arange(2), np.arange(2))
    alone = Alone(make("HeuristicEnemySMAX", **SMALL_BATTLE), 1)
    np.testing.assert_allclose(battle.state()[1], alone.seen["world_state"], **CLOSE)
    tag = batched_env(2, "MPE_simple_tag_v3")
    seen = tag.reset(np.arange(2), np.arange(2)).observations
    expected = np.concatenate([seen[name].reshape(2, -1) for name in tag.groups], axis=1)
    np.testing.assert_array_equal(tag.state(), expected)
    assert tag.state_space.shape == tag.state().shape[1:]


@pytest.mark.parametrize(("name", "parameters"), [CASES[0], CASES[-1]], ids=["spread", "battle"])
def test_a_snapshot_goes_on_in_another_batch(name, parameters):
    env, other = batched_env(4, name, parameters), batched_env(6, name, parameters)
    step, random = env.reset(EVERY, EVERY), np.random.default_rng(5)
    for _ in range(3):
        step = env.step(actions_of(env, random, step.action_masks))
    saved = env.get_state(np.array([3, 1]))
    shown = other.set_state(np.array([0, 5]), saved)
    for group in env.groups:
        np.testing.assert_array_equal(shown.observations[group][[0, 5]], step.observations[group][[3, 1]])
    for _ in range(8):
        actions = actions_of(env, random, step.action_masks)
        theirs = {group: np.zeros((6, *chosen.shape[1:]), chosen.dtype) for group, chosen in actions.items()}
        for group, chosen in actions.items():
            theirs[group][[0, 5]] = chosen[[3, 1]]
        step = env.step(actions)
        assert_same(columns(other.step(theirs), [0, 5]), columns(step, [3, 1]), **CLOSE)
    with pytest.raises(ValueError, match=r"of another environment"):
        batched_env(4, "MPE_simple_tag_v3").set_state(EVERY[:2], saved)


def test_a_limit_of_ones_own_truncates_and_done_means_what_is_said():
    limited = batched_env(2, "MPE_simple_spread_v3", max_env_steps=3)
    ending = batched_env(2, "MPE_simple_spread_v3", {"max_steps": 3}, done_means="terminated")
    for env in (limited, ending):
        env.reset(np.arange(2), np.arange(2))
    random = np.random.default_rng(6)
    for number in range(1, 5):
        cut, over = (env.step(actions_of(env, random)) for env in (limited, ending))
        assert (np.asarray(cut.truncated["agent"]) == (number >= 3)).all()
        assert not np.asarray(cut.terminated["agent"]).any()
        # JaxMARL's particles take max_steps + 1 steps.
        assert (np.asarray(over.terminated["agent"]) == (number == 4)).all()
        assert not np.asarray(over.truncated["agent"]).any()


def test_arrays_share_the_memory_of_jax():
    env = batched_env(4)
    shown = env.reset(EVERY, EVERY).observations["agent"]
    own = env.carry.observations["agent"]
    assert shown.__array_interface__["data"][0] == own.unsafe_buffer_pointer()


def test_jax_is_imported_for_these_environments_only_and_leaves_the_output_alone():
    lines = (
        "import io, sys; sys.stdout = held = io.StringIO(); errors = sys.stderr",
        "import marlflow.config.compose, marlflow.sampling.worker",
        "assert 'jax' not in sys.modules and 'jaxmarl' not in sys.modules",
        "import marlflow.env.functional.jaxmarl",
        "assert sys.stdout is held and sys.stderr is errors and not held.getvalue()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": "MPE_simple_sprad_v3"}, "JaxMARL has no environment 'MPE_simple_sprad_v3'; did you mean"),
        ({"max_env_steps": 0}, "max_env_steps must be a whole number from 1"),
        ({"done_means": "truncate"}, "there is no done_means 'truncate'; did you mean 'truncated'?"),
        ({"parameters": {"local_ratio": 3.0}}, "cannot be made with local_ratio=3.0: AssertionError"),
        ({"name": "JaxRobotarium_foraging"}, "requires the jaxrobotarium package"),
    ],
)
def test_wrong_arguments_are_refused(arguments, expected):
    with pytest.raises(mf.ConfigInvalid, match=expected):
        batched_env(2, **arguments)


def test_a_run_is_resumed_bit_for_bit(tmp_path):
    def until(env_steps):
        env = mf.Env("marlflow.env.functional.jaxmarl.batched_env", {"name": "MPE_simple_spread_v3"}, num_envs=4)
        policies = {"agent": mf.Policy(SMALL_PPO, SMALL)}
        return small_run(env=env, policies=policies, mapping=None, stop=mf.Stop(env_steps=env_steps))

    mf.train(until(400), tmp_path / "two")
    result = mf.resume(until(800), tmp_path / "two")
    mf.train(until(800), tmp_path / "one")
    assert reports(tmp_path / "two")[-1]["policies"] == reports(tmp_path / "one")[-1]["policies"]
    assert result.metrics["faults"]["episodes_restarted"] == 0
    assert result.metrics["faults"]["env_errors"] == 0


def test_infos_and_whether_a_battle_is_won_are_figures(tmp_path):
    run = small_run(
        env=mf.Env("jaxmarl", {"name": "HeuristicEnemySMAX", "parameters": {"num_allies": 3, "num_enemies": 1}}),
        policies={"ally": mf.Policy(SMALL_PPO, SMALL)},
        mapping=None,
        stop=mf.Stop(env_steps=3_000),
    )
    won = mf.train(run, tmp_path).metrics["policies"]["ally"]["infos"]["won_episode"]
    assert 0.0 < won < 1.0, "three against one win some battles at random"
    env = batched_env(2, "overcooked")
    env.reset(np.arange(2), np.arange(2))
    assert env.info_keys == ("shaped_reward",)
    step = env.step({"agent": np.zeros((2, 2), np.int64)})
    assert step.infos["shaped_reward"]["agent"].shape == (2, 2)


@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "HeuristicEnemySMAX", "overcooked", "overcooked_v2"])
def test_a_picture_is_jaxmarls(name):
    env = batched_env(1, name, render_mode="rgb_array")
    env.reset(np.zeros(1, np.int64), np.zeros(1, np.int64))
    before = env.render()
    random = np.random.default_rng(0)
    for _ in range(8):
        env.step({group: random.integers(0, 4, (1, len(agents))) for group, agents in env.groups.items()})
    assert (before.dtype, before.ndim, before.shape[2]) == (np.uint8, 3, 3)
    assert (before != env.render()).any()


@pytest.mark.parametrize("name", ["hanabi", "MPE_simple_push_v3", "storm_2p"])
def test_what_jaxmarl_cannot_draw_has_no_pictures(name):
    assert batched_env(1, name, render_mode="rgb_array").metadata["render_modes"] == []
    with pytest.raises(mf.ConfigInvalid, match="has no render mode 'human'; it has none"):
        batched_env(1, name, render_mode="human")
