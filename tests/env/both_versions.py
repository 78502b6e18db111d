"""Steps the batched version of an environment and PettingZoo's side by side, and compares every number."""

from __future__ import annotations

import numpy as np

from marlflow.env import open_adapter
from marlflow.sampling.group_layout import GroupLayout


def compare(make_env, make_batched, seeds, choose, most_steps=400):
    """Play one episode for each of `seeds` by both; `choose(number, observation, mask)` gives actions of the space.

    Returns the number of agent steps. The environments of the batch that are over are reset at once, with the next of
    `seeds`, so that later episodes begin at different times.
    """
    num_envs = min(5, len(seeds))
    batch = make_batched(num_envs)
    singles = [open_adapter(make_env()) for _ in range(num_envs)]
    agents = list(singles[0].agents)
    layout = GroupLayout(batch, {name for name, of in batch.groups.items() if singles[0].masked(of[0])})
    assert getattr(batch, "possible_agents", agents) == agents
    for agent in agents:
        assert batch.observation_space(agent) == singles[0].observation_space(agent), agent
        assert batch.action_space(agent) == singles[0].action_space(agent), agent
    waiting, steps = list(seeds), 0
    stride = len(agents)
    everything = np.arange(num_envs * stride)
    running = {index: singles[index].reset(waiting[index]) for index in range(num_envs)}
    step = layout.read(batch.reset(np.arange(num_envs), np.array(waiting[:num_envs], np.int64)))
    del waiting[:num_envs]
    alive = np.ones(num_envs * stride, bool)
    for _ in range(most_steps):
        _compare_pending(layout, step, alive, running, stride)
        layout.clear_actions()
        results = {}
        for index, result in running.items():
            masks = result.masks or [None] * len(result.deciding)
            actions = [
                choose(steps + at, observation, mask, singles[index].action_space(agents[slot]))
                for at, (slot, observation, mask) in enumerate(
                    zip(result.deciding, result.observations, masks, strict=True)
                )
            ]
            for slot, action in zip(result.deciding, actions, strict=True):
                layout.write_actions(np.array([index * stride + slot]), np.asarray(action)[None])
            steps += len(actions)
            results[index] = actions
        step = layout.read(batch.step(layout.actions))
        rewards = layout.by_lane(step.rewards, np.float64)
        terminated, truncated = layout.by_lane(step.terminated, bool), layout.by_lane(step.truncated, bool)
        over = []
        for index, actions in results.items():
            result = running[index] = singles[index].act(actions)
            received = np.zeros(stride)
            np.add.at(received, np.array(result.reward_slots, np.int64), result.rewards)
            lanes = everything[index * stride : (index + 1) * stride]
            np.testing.assert_array_equal(rewards[lanes], received)
            ended = {ending.slot: ending for ending in result.ended}
            for slot, lane in enumerate(lanes.tolist()):
                ends = bool(alive[lane] and (terminated[lane] or truncated[lane]))
                assert ends == (slot in ended), (index, slot)
                if ends:
                    assert bool(terminated[lane]) == ended[slot].terminated
                    final = layout.rows(step.observations, np.array([lane]))[0]
                    np.testing.assert_array_equal(final, ended[slot].observation)
                    alive[lane] = False
            _compare_state(batch, singles[index], index)
            if result.over:
                over.append(index)
        for index in over:
            del running[index]
            if waiting:
                seed = waiting.pop(0)
                running[index] = singles[index].reset(seed)
                fresh = layout.read(batch.reset(np.array([index]), np.array([seed], np.int64)))
                alive[index * stride : (index + 1) * stride] = True
                step = _merged(step, fresh, index)
        if not running:
            return steps
    raise AssertionError("some episodes never end")


def _merged(step, fresh, index):
    for name in ("observations", "decides", "action_masks"):
        arrays = getattr(step, name)
        for group in arrays:
            array = arrays[group] = arrays[group].copy()
            array[index] = getattr(fresh, name)[group][index]
    return step


def _compare_pending(layout, step, alive, running, stride):
    decides = layout.by_lane(step.decides, bool) & alive if step.decides else alive
    for index, result in running.items():
        slots = np.flatnonzero(decides[index * stride : (index + 1) * stride]).tolist()
        assert slots == result.deciding
        for position, slot in enumerate(slots):
            lane = np.array([index * stride + slot])
            observation = layout.rows(step.observations, lane)[0]
            expected = np.asarray(result.observations[position])
            assert observation.dtype == expected.dtype
            np.testing.assert_array_equal(observation, expected)
            if result.masks and result.masks[position] is not None:
                np.testing.assert_array_equal(layout.rows(step.action_masks, lane)[0], result.masks[position])


def _compare_state(batch, single, index):
    if getattr(batch, "state_space", None) is not None:
        assert batch.state_space == single._env.state_space
        np.testing.assert_array_equal(batch.state()[index], single.state())
