"""JaxMARL's particles are mpe2's: the same observations and rewards from the same places, so that policies fit both."""

from importlib import import_module

import numpy as np
import pytest

from tests.env.optional import is_installed

if not is_installed("jaxmarl"):
    pytest.skip("JaxMARL is not installed: pip install 'marlflow[jaxmarl]'", allow_module_level=True)
pytest.importorskip("mpe2")

import jax

from marlflow.env.functional.jaxmarl_import import make


@pytest.mark.parametrize(
    "name", ["simple_spread_v3", "simple_speaker_listener_v4", "simple_tag_v3", "simple_adversary_v3"]
)
def test_observations_and_rewards_of_the_same_places_are_those_of_mpe2(name):
    theirs, env = make(f"MPE_{name}"), import_module(f"mpe2.{name}").parallel_env(max_cycles=25)
    assert list(theirs.agents) == env.possible_agents
    step, random = jax.jit(theirs.step_env), np.random.default_rng(0)
    for episode in range(4):
        key = jax.random.PRNGKey(episode)
        env.reset(seed=episode)
        world = env.unwrapped.world
        for entity in world.entities:
            # Close, so that agents touch.
            entity.state.p_pos = random.uniform(-0.4, 0.4, 2)
        state = theirs.reset(key)[1]
        places = np.array([entity.state.p_pos for entity in world.entities], np.float32)
        known = [value for agent in world.agents for value in vars(agent).values()]
        goals = [at for at, landmark in enumerate(world.landmarks) if any(value is landmark for value in known)]
        state = state.replace(p_pos=places, p_vel=np.zeros_like(places), goal=goals[0] if goals else state.goal)
        for _ in range(25):
            actions = {agent: int(random.integers(env.action_space(agent).n)) for agent in env.agents}
            seen, rewards, *_ = env.step(actions)
            their_view, state, their_rewards, *_ = step(key, state, actions)
            for agent in seen:
                np.testing.assert_allclose(their_view[agent], seen[agent], atol=1e-3)
                assert float(their_rewards[agent]) == pytest.approx(rewards[agent], abs=1e-3)
