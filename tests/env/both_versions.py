"""Steps the batched version of an environment and PettingZoo's side by side, and compares every number."""

from __future__ import annotations

import numpy as np

from marlflow.env import open_adapter
from marlflow.env.batched.protocol import info_keys
from marlflow.sampling.group_layout import GroupLayout

MOST_STEPS = 700


def compare(make_env, make_batched, seeds, choose, reward_tolerance=0.0):
    """Play one episode for each of `seeds` by both; `choose(observation, mask, space)` gives actions of the space.

    Returns the number of agent steps. Environments of the batch that are over are reset with the next of `seeds`, so
    that later episodes begin at different times.
    """
    pair = _Pair(make_env, make_batched, min(5, len(seeds)), reward_tolerance)
    waiting = list(seeds)
    for index in range(pair.num_envs):
        pair.reset(index, waiting.pop(0))
    for _ in range(MOST_STEPS):
        for index in pair.step(choose):
            if waiting:
                pair.reset(index, waiting.pop(0))
        if not pair.running:
            return pair.agent_steps
    raise AssertionError("some episodes never end")


class _Pair:
    def __init__(self, make_env, make_batched, num_envs, reward_tolerance):
        self.num_envs, self.reward_tolerance = num_envs, reward_tolerance
        self.batch, self.singles = make_batched(num_envs), [open_adapter(make_env()) for _ in range(num_envs)]
        single = self.singles[0]
        self.agents = list(single.agents)
        for adapter in self.singles:
            adapter.info_keys = info_keys(self.batch)
        masked = {name for name, agents in self.batch.groups.items() if single.masked(agents[0])}
        self.layout = GroupLayout(self.batch, masked)
        for agent in self.agents:
            assert self.batch.observation_space(agent) == single.observation_space(agent), agent
            assert self.batch.action_space(agent) == single.action_space(agent), agent
        self.alive = np.zeros((num_envs, len(self.agents)), bool)
        self.running, self.latest, self.agent_steps = {}, {}, 0

    def lane(self, index, slot):
        return np.array([index * len(self.agents) + slot])

    def by_agent(self, arrays, dtype):
        return self.layout.by_lane(arrays, dtype).reshape(self.num_envs, -1)

    def reset(self, index, seed):
        self.running[index] = self.singles[index].reset(seed)
        self.alive[index] = True
        step = self.layout.read(self.batch.reset(np.array([index]), np.array([seed], np.int64)))
        self.look(step, [index])

    def look(self, step, indices):
        """Compare what the agents see that decide next in `indices`."""
        decides = self.by_agent(step.decides, bool) & self.alive if step.decides else self.alive
        for index in indices:
            result = self.running[index]
            assert np.flatnonzero(decides[index]).tolist() == result.deciding
            for position, slot in enumerate(result.deciding):
                lane = self.lane(index, slot)
                expected = np.asarray(result.observations[position])
                observation = self.layout.rows(step.observations, lane)[0]
                assert observation.dtype == expected.dtype
                np.testing.assert_array_equal(observation, expected)
                if result.masks:
                    mask = self.layout.rows(step.action_masks, lane)[0]
                    np.testing.assert_array_equal(mask, result.masks[position])

    def step(self, choose):
        """Step both by the same actions; return the environments that are over."""
        self.layout.clear_actions()
        chosen = {}
        for index, result in self.running.items():
            masks = result.masks or [None] * len(result.deciding)
            spaces = [self.singles[index].action_space(self.agents[slot]) for slot in result.deciding]
            chosen[index] = list(map(choose, result.observations, masks, spaces))
            self.agent_steps += len(spaces)
            for slot, action in zip(result.deciding, chosen[index], strict=True):
                self.layout.write_actions(self.lane(index, slot), np.asarray(action)[None])
        step = self.layout.read(self.batch.step(self.layout.actions))
        for index, actions in chosen.items():
            self.running[index] = self.singles[index].act(actions)
            self.compare_ends(step, index)
            self.compare_state(index)
        over = [index for index, result in self.running.items() if result.over]
        self.running = {index: result for index, result in self.running.items() if not result.over}
        self.look(step, list(self.running))
        return over

    def compare_ends(self, step, index):
        result = self.running[index]
        received = np.zeros(len(self.agents))
        np.add.at(received, np.array(result.reward_slots, np.int64), result.rewards)
        rewards = self.by_agent(step.rewards, np.float64)[index]
        np.testing.assert_allclose(rewards, received, rtol=0.0, atol=self.reward_tolerance)
        for key in info_keys(self.batch):
            given = np.zeros(len(self.agents))
            np.add.at(given, np.array(result.reward_slots, np.int64), [info[key] for info in result.infos])
            np.testing.assert_array_equal(self.by_agent(step.infos[key], np.float64)[index], given)
        terminated, truncated = self.by_agent(step.terminated, bool)[index], self.by_agent(step.truncated, bool)[index]
        ends = np.flatnonzero((terminated | truncated) & self.alive[index]).tolist()
        assert ends == sorted(ending.slot for ending in result.ended)
        for ending in result.ended:
            assert ending.terminated == terminated[ending.slot]
            final = self.layout.rows(step.observations, self.lane(index, ending.slot))[0]
            np.testing.assert_array_equal(final, ending.observation)
        self.alive[index, ends] = False

    def compare_state(self, index):
        if getattr(self.batch, "state_space", None) is not None:
            np.testing.assert_array_equal(self.batch.state()[index], self.singles[index].state())
