"""Functional environments give the numbers of the same games in plain Python, and are checked before they run."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import marlflow as mf
from marlflow.env.functional.batch import rarely
from marlflow.env.functional.own import batched_env
from marlflow.env.make import make_environment
from tests.driver.resumed_runs import resumes_exactly
from tests.env.both_versions import compare
from tests.env.functional_games import MOST_STEPS, MOST_TURNS, HotPotato, HotPotatoAlone, Walkers, WalkersAlone
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

GAMES = {
    "walkers": (WalkersAlone, partial(batched_env, make=Walkers, max_env_steps=MOST_STEPS)),
    "potato": (HotPotatoAlone, partial(batched_env, make=HotPotato, max_env_steps=MOST_TURNS)),
}


def chooser(seed):
    random = np.random.default_rng(seed)

    def choose(observation, mask, space):
        del observation
        return random.choice(np.flatnonzero(mask)) if mask is not None else random.integers(space.n)

    return choose


@pytest.mark.parametrize("name", list(GAMES))
def test_the_numbers_are_those_of_the_same_game_in_plain_python(name):
    alone, batched = GAMES[name]

    def without_state(num_envs):
        env = batched(num_envs)
        # An AEC game has no global state to compare.
        env.state_space = env.state_space if name == "walkers" else None
        return env

    assert compare(alone, without_state, range(60, 74), chooser(1)) > 100


class WithNumbers(Walkers):
    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers


def test_compiled_calls_are_shared_by_arguments_that_are_equal_to_the_last_number():
    one, other = np.zeros(5_000), np.zeros(5_000)
    other[2_500] = 1.0
    # Their texts are the same.
    assert repr(one) == repr(other)

    def calls(numbers):
        return batched_env(2, WithNumbers, {"numbers": numbers}).calls

    assert calls(one) is calls(one.copy())
    assert calls(one) is not calls(other)
    # What cannot be pickled is never shared.
    assert calls(lambda: 0) is not calls(lambda: 0)


class Broken(Walkers):
    """Walkers with one fault, each of which is a class below."""


class Counting(Broken):
    calls = 0

    def step(self, key, state, actions):
        Counting.calls += 1
        after, step = super().step(key, state, actions)
        return after, step._replace(rewards={**step.rewards, "caller": Counting.calls})


class Drawing(Broken):
    def reset(self, key):
        state, step = super().reset(key)
        return {**state, "place": state["place"] + np.random.default_rng().integers(2**30)}, step


class Growing(Broken):
    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return {**after, "place": jnp.concatenate([after["place"], after["place"]])}, step


class Turning(Broken):
    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return {**after, "place": after["place"] / 2}, step


class Adding(Broken):
    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return {**after, "time": jnp.zeros(())}, step


class Branching(Broken):
    def step(self, key, state, actions):
        return super().step(key, state, actions) if state["place"][0] > 0 else None


class Failing(Broken):
    def step(self, key, state, actions):
        raise RuntimeError("no wind")


class Narrow(Broken):
    def see(self, state):
        return {**super().see(state), "walker": state["place"]}


class Priced(Broken):
    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return after, step._replace(infos={"price": {"walker": jnp.zeros(2)}})


class Unmasked(Broken):
    def reset(self, key):
        state, step = super().reset(key)
        return state, step._replace(action_masks={})


class Strange(Broken):
    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return after, step._replace(rewards={"runner": 0.0})


class Bare(Broken):
    def step(self, key, state, actions):
        return super().step(key, state, actions)[0]


class Typed(Broken):
    def reset(self, key):
        state, step = super().reset(key)
        return {**state, "key": jax.random.key(0)}, step

    def step(self, key, state, actions):
        after, step = super().step(key, state, actions)
        return {**after, "key": state["key"]}, step


class Continuous(Broken):
    def action_space(self, agent):
        return super().action_space(agent) if agent == "caller_0" else spaces.Box(-1, 1, (2,), np.float32)

    def step(self, key, state, actions):
        return super().step(key, state, {**actions, "walker": (actions["walker"][:, 0] > 0).astype(int)})


class Turnless(Broken):
    turn_based = True


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Counting, "step(key, state, actions) computes something else when it is called again"),
        (Drawing, "reset(key) computes something else when it is called again"),
        (Growing, "a step changes the state['place'] from int32[3] to int32[6]"),
        (Turning, "a step changes the state['place'] from int32[3] to float32[3]"),
        (Adding, "a step changes the structure of the state at ['time']"),
        (Branching, "cannot be compiled: Attempted boolean conversion of traced array"),
        (Failing, "step(key, state, actions) raised RuntimeError: no wind"),
        (Narrow, "reset gives an array of shape [3] as observations of group 'walker', not one of [3, 2]"),
        (Priced, "step gives infos['price'] of shape [2] to group 'walker', not [3]"),
        (Unmasked, "reset gives action_masks of no group and step of caller, walker; both must give the same"),
        (Strange, "step gives rewards of 'runner', and the groups are walker, caller"),
        (Bare, "step(key, state, actions) must return a state and a marlflow.env.FunctionalStep"),
        (Typed, "the state['key'] is a typed key; keep jax.random.key_data(key), and make it one by wrap_key_data"),
        (Continuous, "reset gives action masks to group 'walker', whose actions are a Box"),
        (Turnless, "it is turn_based, so reset and step must give decides of each group"),
        (WalkersAlone, "WalkersAlone makes a WalkersAlone, and not a marlflow.env.FunctionalEnv"),
        ("tests.env.functional_games.Walker", "has no 'Walker'; did you mean 'Walkers'?"),
    ],
)
def test_a_faulty_environment_is_refused_in_one_sentence(make, expected):
    with pytest.raises(mf.ConfigInvalid) as refused:
        batched_env(2, make)
    (problem,) = refused.value.problems
    assert expected in problem


def test_a_wrong_argument_is_refused():
    with pytest.raises(mf.ConfigInvalid, match="unexpected keyword argument 'num_cats'"):
        batched_env(2, Walkers, {"num_cats": 3})
    with pytest.raises(mf.ConfigInvalid, match="max_env_steps must be a whole number from 1"):
        batched_env(2, Walkers, max_env_steps=0)
    with pytest.raises(mf.ConfigInvalid, match="Walkers has no render mode 'human'; it has none"):
        batched_env(2, Walkers, render_mode="human")


class Drowning(Walkers):
    """A walker at the edge observes NaN."""

    def see(self, state):
        seen = super().see(state)
        return {**seen, "walker": jnp.where(jnp.abs(seen["walker"]) == 4, jnp.nan, seen["walker"])}


def test_a_nan_ends_the_episode_of_its_environment_and_is_counted(tmp_path):
    env = mf.Env("functional", {"make": Drowning, "max_env_steps": 9}, num_envs=4)
    policies = {"walker": mf.Policy(SMALL_PPO, SMALL), "caller": mf.Policy(SMALL_PPO, SMALL)}
    result = mf.train(
        small_run(
            env=env,
            policies=policies,
            mapping=None,
            env_steps=200,
            faults=mf.Faults(env_errors=10_000),
            # What breaks in compiled calls is in tests/sampling/test_compiled_rollouts.py.
            rollouts=mf.Rollouts(2, 40, compiled=False),
        ),
        tmp_path,
    )
    assert result.metrics["faults"]["env_errors"] > 3


def test_mixed_algorithms_learn_in_compiled_calls_and_a_run_is_resumed_bit_for_bit(tmp_path):
    env = mf.Env("functional", {"make": Walkers, "max_env_steps": MOST_STEPS}, num_envs=4)
    policies = {"walker": mf.Policy(SMALL_PPO, SMALL), "caller": mf.Policy(SMALL_DQN, SMALL)}
    experiment = small_run(
        env=env,
        policies=policies,
        mapping=None,
        rollouts=mf.Rollouts(2, 40, compiled=True),
        stop=mf.Stop(env_steps=800),
        evaluation=mf.Evaluation(200, 6),
    )
    assert resumes_exactly(experiment, tmp_path, 400).metrics["faults"]["env_errors"] == 0


def test_check_env_finds_them_ready():
    for make, limit in ((Walkers, MOST_STEPS), (HotPotato, MOST_TURNS)):
        trial = mf.check_environment(mf.Env("functional", {"make": make, "max_env_steps": limit}), episodes=20)
        assert trial.ready, trial.problems
        assert trial.reproducible
        assert trial.episodes.conserved


def test_an_episode_does_not_depend_on_the_others_of_its_batch():
    one, many = (batched_env(num_envs, Walkers, max_env_steps=MOST_STEPS) for num_envs in (1, 20))
    alone = [one.reset(np.array([0]), np.array([7]))]
    among = [many.reset(np.arange(20), np.where(np.arange(20) == 13, 7, np.arange(20)))]
    random = np.random.default_rng(3)
    for number in range(MOST_STEPS):
        actions = {"walker": random.integers(0, 3, (20, 3)), "caller": random.integers(0, 2, (20, 1))}
        among.append(many.step(actions))
        alone.append(one.step({name: chosen[13:14] for name, chosen in actions.items()}))
        many.reset(np.array([number]), np.array([number]))
    for ours, theirs in zip(alone, among, strict=True):
        for kind in ("observations", "rewards", "terminated", "truncated", "action_masks"):
            for name, array in getattr(ours, kind).items():
                np.testing.assert_array_equal(array[0], getattr(theirs, kind)[name][13], err_msg=kind)
        for name, array in ours.infos.get("cost", {}).items():
            np.testing.assert_array_equal(array[0], theirs.infos["cost"][name][13])


def test_resets_of_any_number_share_few_compiled_calls():
    env = batched_env(20, HotPotato)
    for count in (20, *range(1, 20)):
        rows = np.arange(count)
        first, again = (env.reset(rows, rows + count).observations["player"][:count] for _ in range(2))
        np.testing.assert_array_equal(first, again)
    assert env.calls.reset.jitted._cache_size() == 2  # of 8 and 20 rows


def test_what_is_rarely_needed_is_the_same_as_if_it_always_were():
    def square(x, y):
        return {"a": x * x, "b": y}

    where, x, y = jnp.array([True, False, True]), jnp.arange(3.0), jnp.ones((3, 2))
    mapped = jax.vmap(lambda w, one, two: rarely(w, square, {"a": -one, "b": 0 * two}, one, two))
    for chosen in (where, ~where, jnp.zeros(3, bool)):
        found = jax.jit(mapped)(chosen, x, y)
        np.testing.assert_array_equal(found["a"], jnp.where(chosen, x * x, -x))
        np.testing.assert_array_equal(found["b"], jnp.where(chosen[:, None], y, 0.0))
    assert rarely(jnp.array(True), square, {"a": x, "b": y}, x, y)["a"][2] == 4


@pytest.mark.slow
def test_jax_is_imported_for_these_environments_only():
    lines = (
        "import sys, marlflow, marlflow.config.compose, marlflow.sampling.worker, marlflow.env",
        "assert 'jax' not in sys.modules",
        "import marlflow.env.functional.own, jax",
        "assert jax.devices()[0].platform == 'cpu'",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_a_functional_environment_in_place_of_pettingzoos_is_told_where_it_goes():
    path = "tests.env.functional_games.Walkers"
    with pytest.raises(mf.ConfigInvalid, match=rf"a functional environment is env=functional env.make={path}"):
        make_environment(path, {})


@pytest.mark.slow
def test_another_version_of_jax_is_refused_with_what_to_install():
    lines = (
        "import jax; jax.__version__ = '0.12.1'",
        "import marlflow as mf; mf.check_environment(mf.Env('functional', {'make': 'any.Thing'}))",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert "jax 0.12.1 is not 0.10, for which marlflow compiles; pip install 'jax>=0.10,<0.11'" in done.stderr
