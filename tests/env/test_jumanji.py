"""Environments of jumanji step as in jumanji itself, and each agent sees its own part."""

import numpy as np
import pytest

from tests.env.optional import is_installed

if not is_installed("jumanji"):
    pytest.skip("jumanji is not installed: pip install 'marlflow[jumanji]'", allow_module_level=True)

import jax
import jumanji
from gymnasium import spaces
from jumanji.environments.routing.connector.generator import RandomWalkGenerator

import marlflow as mf
from marlflow.env.functional.jumanji import batched_env
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

ROWS = np.arange(3)
FORAGING = {"grid_size": 7, "num_agents": 2, "num_food": 2, "fov": 7, "force_coop": True}
WAREHOUSE = {"shelf_rows": 1, "shelf_columns": 3, "column_height": 4, "num_agents": 2, "sensor_range": 1}
CASES = [
    ("LevelBasedForaging-v0", {"time_limit": 30}, FORAGING),
    ("RobotWarehouse-v0", {"time_limit": 12}, {**WAREHOUSE, "request_queue_size": 4}),
    ("Connector-v3", {"time_limit": 12}, {"num_agents": 3, "grid_size": 6}),
    ("Cleaner-v0", {}, {"num_rows": 3, "num_cols": 3, "num_agents": 2}),
    ("SearchAndRescue-v0", {"time_limit": 10}, {"num_targets": 5, "num_searchers": 2}),
    ("MultiCVRP-v0", {}, {}),
]


def direct(name, parameters, generator):
    """jumanji's own environment with the same arguments, all of which `generator` has."""
    usual = jumanji.make(name)
    drawn = getattr(usual, "generator", getattr(usual, "_generator", None))
    own = {"generator": type(drawn)(**generator)} if generator else {}
    return jumanji.make(name, **parameters, **own)


def actions_of(env, random, masks):
    shape, space = (env.num_envs, len(env.possible_agents)), env.action_space("agent_0")
    if masks:
        return (random.random(masks["agent"].shape) * masks["agent"]).argmax(axis=-1)
    if isinstance(space, spaces.Discrete):
        return random.integers(0, space.n, shape)
    return random.uniform(space.low, space.high, (*shape, *space.shape)).astype(np.float32)


@pytest.mark.parametrize(("name", "parameters", "generator"), CASES, ids=[name for name, *_ in CASES])
def test_steps_and_ends_are_those_of_jumanji(name, parameters, generator):
    env, own = batched_env(3, name, parameters, generator), direct(name, parameters, generator)
    step_one, random = jax.jit(own.step), np.random.default_rng(0)
    shown = env.reset(ROWS, ROWS + 5)
    alone = [jax.jit(own.reset)(jax.random.split(jax.random.PRNGKey(5 + row))[0]) for row in ROWS]
    over, ends = np.zeros(3, bool), set()
    for _ in range(500):
        actions = actions_of(env, random, shown.action_masks)
        shown = env.step({"agent": actions})
        for row in np.flatnonzero(~over):
            alone[row] = step_one(alone[row][0], actions[row].astype(own.action_spec.dtype))
            told = alone[row][1]
            agents = len(env.possible_agents)
            np.testing.assert_allclose(
                shown.rewards["agent"][row], np.broadcast_to(told.reward, agents), rtol=1e-4, atol=1e-5
            )
            stops = np.broadcast_to(told.discount, agents) == 0
            np.testing.assert_array_equal(shown.terminated["agent"][row], stops)
            np.testing.assert_array_equal(shown.truncated["agent"][row], ~stops & bool(told.last()))
            for field in ("agents_view", "searcher_views"):
                if hasattr(told.observation, field):
                    seen = shown.observations["agent"][row]
                    np.testing.assert_allclose(seen, getattr(told.observation, field), rtol=1e-4, atol=1e-4)
            if told.last():
                over[row] = True
                ends |= {"terminated" if stops.all() else "truncated"}
        if over.all():
            break
    assert over.all()
    assert ends <= {"terminated", "truncated"}


def test_cleaners_see_tiles_and_each_other():
    env = batched_env(1, "Cleaner-v0", generator={"num_rows": 4, "num_cols": 5, "num_agents": 2})
    seen = env.reset(ROWS[:1], ROWS[:1]).observations["agent"][0]
    assert seen.shape == (2, 4, 5, 5)
    np.testing.assert_array_equal(seen[..., :3].sum(axis=-1), 1)
    assert seen[:, 0, 0, 3].tolist() == [1, 1]
    assert seen[..., 3].sum() == 2
    assert seen[:, 0, 0, 4].tolist() == [1, 1], "both begin on one tile"


def test_connectors_see_their_own_path_first():
    env = batched_env(1, "Connector-v3", generator={"num_agents": 3, "grid_size": 6})
    assert RandomWalkGenerator is type(env.calls.env.env._generator)
    seen = env.reset(ROWS[:1], ROWS[:1]).observations["agent"][0]
    assert seen.shape == (3, 6, 6, 6)
    # A head and a target of one's own, and of two others.
    np.testing.assert_array_equal(seen.sum(axis=(1, 2)), [[0, 1, 1, 0, 2, 2]] * 3)
    np.testing.assert_array_equal(seen[0, ..., 1] + seen[0, ..., 4], seen[1, ..., 1] + seen[1, ..., 4])


def test_what_is_left_out_of_a_generator_is_as_in_jumanjis_own():
    env = batched_env(1, generator={"num_food": 3}).calls.env.env
    usual = jumanji.make("LevelBasedForaging-v0")
    for name in ("grid_size", "num_agents", "fov"):
        assert getattr(env, name) == getattr(usual, name)
    assert (env.num_food, usual.num_food) == (3, 2)


def test_an_end_means_what_is_said():
    found = {}
    for done_means in ("auto", "truncated"):
        env = batched_env(1, "RobotWarehouse-v0", {"time_limit": 3}, done_means=done_means)
        env.reset(ROWS[:1], ROWS[:1])
        steps = [env.step({"agent": np.zeros((1, 4), int)}) for _ in range(3)]
        found[done_means] = steps[-1].terminated["agent"].all(), steps[-1].truncated["agent"].all()
    assert found == {"auto": (True, False), "truncated": (False, True)}


def test_wrong_arguments_are_refused():
    for arguments, expected in (
        ({"name": "LevelBasedForagin-v0"}, "jumanji has no environment 'LevelBasedForagin-v0'; did you mean"),
        ({"name": "Snake-v1"}, "Snake-v1 of jumanji has no actions of several agents"),
        ({"parameters": {"limit": 5}}, "LevelBasedForaging-v0 of jumanji cannot be made with limit=5: TypeError"),
        ({"generator": {"grid": 5}}, "the generator of LevelBasedForaging-v0 has no argument 'grid'"),
        ({"done_means": "end"}, "there is no done_means 'end'; there are auto, terminated, truncated"),
    ):
        with pytest.raises(mf.ConfigInvalid, match=expected):
            batched_env(2, **arguments)


def test_a_picture_is_jumanjis():
    env = batched_env(1, render_mode="rgb_array")
    env.reset(ROWS[:1], ROWS[:1])
    before = env.render()
    env.step({"agent": np.full((1, 2), 2)})
    assert (before.dtype, before.ndim, before.shape[2]) == (np.uint8, 3, 3)
    assert (before != env.render()).any()


def test_a_policy_learns_level_based_foraging(tmp_path):
    env = mf.Env("jumanji", {"parameters": {"time_limit": 10}}, num_envs=4)
    result = mf.train(
        small_run(env=env, policies={"agent": mf.Policy(SMALL_PPO, SMALL)}, mapping=None, env_steps=400), tmp_path
    )
    assert (result.metrics["faults"]["env_errors"], result.metrics["episodes"]) == (0, 40)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_foragers_have_eaten_is_a_figure(compiled, tmp_path):
    run = small_run(
        env=mf.Env("jumanji", {"name": "LevelBasedForaging-v0", "parameters": {"time_limit": 20}}, num_envs=4),
        policies={"agent": mf.Policy(SMALL_PPO, SMALL)},
        mapping=None,
        rollouts=mf.Rollouts(num_workers=1, compiled=compiled),
        stop=mf.Stop(env_steps=2_000),
    )
    metrics = mf.train(run, tmp_path).metrics["policies"]["agent"]
    assert 0.0 <= metrics["infos"]["percent_eaten"] <= 100.0
    # The field's return, summed over agents, is the share that was eaten.
    assert metrics["infos"]["percent_eaten"] == pytest.approx(100.0 * metrics["team_return_mean"], abs=1e-3)
