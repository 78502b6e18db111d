"""A person's rows are those that a worker would have collected, whatever the environment does."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import HealthCheck, Phase, assume, given, settings

import marlflow as mf
from marlflow.base.random import episode_seed
from marlflow.base.spaces import Spaces
from marlflow.env.adapter import AgentEnd
from marlflow.env.opening import open_adapter
from marlflow.offline.dataset import find_dataset
from marlflow.offline.manifest import RecordedEnvironment
from marlflow.sampling.acting_policy import ActionDecoder
from marlflow.trained.games import Episode, play_episode
from marlflow.trained.person_rows import EpisodeRows, PersonDataset
from marlflow.trained.views import RowsWatcher
from tests.sampling.built_environments import BuiltAEC, BuiltParallel
from tests.sampling.row_actors import RowActor, decide
from tests.sampling.scripts import scripts
from tests.sampling.workers import rollout_worker

SEED, EPISODES = 5, 2
NOT_OURS = ("behavior_logp", "version")  # a person has neither


class SteadyActor(RowActor):
    """Decides without a random number, so that a person can decide alike."""

    def act(self, obs, action_mask, memory, mode, generator):
        return self.decided(obs, action_mask, [None] * len(obs), "greedy", generator)


class Kept:
    """Keeps batches as a PersonDataset would write them."""

    def __init__(self):
        self.episodes, self.batches = 0, []

    def add(self, rows, env_steps):
        self.batches.append(rows and rows.batch(self.episodes))
        self.episodes += 1


def spaces_of(script, agent):
    kind = script.kind(agent)
    space = kind.observation_space()
    if kind.masks == "alone":
        space = space["observation"]
    if kind.masks == "beside":
        space = type(space)({"seen": space["seen"]})
    any_info = any(script.kind(other).masks == "info" for other in script.agents)
    masked = kind.masks != "none" or (any_info and isinstance(kind.action_space(), Discrete))
    return Spaces(space, kind.action_space(), masked)


def played_by_people(make_env, script):
    """All agents are people, who decide as the worker's policies."""
    adapter = open_adapter(make_env())
    spaces = {agent: spaces_of(script, agent) for agent in script.agents}
    kept = {agent: Kept() for agent in script.agents}
    watchers = [RowsWatcher(agent, spaces[agent], kept[agent]) for agent in script.agents]

    def person(decision):
        of = spaces[decision.agent]
        seen = of.encoder().stack([decision.observation])[0]
        mask = None
        if of.masked:
            mask = np.ones(of.mask_width, bool) if decision.mask is None else np.array(decision.mask, bool)
        action = decide(of.action, 0.0, seen, mask, None, 0.0).action
        return ActionDecoder("person", of.action).choices(np.asarray(action)[None])[0]

    for number in range(EPISODES):
        play_episode(adapter, Episode(number, EPISODES, episode_seed(SEED, 0, number)), {}, person, watchers)
    return {agent: [batch for batch in each.batches if batch is not None] for agent, each in kept.items()}


def collected_by_a_worker(make_env, script):
    mapping = {agent: agent for agent in script.agents}
    actors = {agent: SteadyActor(script.kind(agent).action_space()) for agent in script.agents}
    worker = rollout_worker(make_env, [0], mapping, actors, SEED, recorded=script.agents, with_state=[])
    # Long enough for two episodes in one fragment.
    _, batches = worker.collect(80)
    worker.close()
    return batches


def of_first_episodes(batch):
    ended = batch.segments["terminated"] | batch.segments["truncated"]
    return batch.only(ended & (batch.segments["episode"] < EPISODES))


@pytest.mark.parametrize("kind", [BuiltAEC, BuiltParallel])
@settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(script=scripts())
def test_rows_of_a_person_are_those_of_a_worker(kind, script):
    # A person plays an agent that is known beforehand.
    assume("undeclared" not in script.habits)

    def make_env():
        return kind(script)

    try:
        collected = collected_by_a_worker(make_env, script)
    except mf.EnvironmentFailed:
        assume(False)
    played = played_by_people(make_env, script)
    for agent in script.agents:
        wanted = of_first_episodes(collected[agent])
        # An agent that never acted has no rows.
        assert sum(batch.rows for batch in played[agent]) == wanted.rows
        if not wanted.rows:
            continue
        found = mf.Batch.concat(played[agent])
        for name in wanted.columns.keys() - set(NOT_OURS):
            assert found.columns[name].dtype == wanted.columns[name].dtype, name
            np.testing.assert_array_equal(found.columns[name], wanted.columns[name], err_msg=name)
        assert found.columns.keys() == wanted.columns.keys()
        assert found.segments.keys() == wanted.segments.keys()
        for name in wanted.segments.keys() - {"lane", "agent"}:
            assert found.segments[name].dtype == wanted.segments[name].dtype, name
            np.testing.assert_array_equal(found.segments[name], wanted.segments[name], err_msg=name)


SPACES = Spaces(Discrete(4), Discrete(3), masked=True)


def dataset(folder, policy="mine", action=3):
    spaces = Spaces(Discrete(4), Discrete(action), masked=True)
    environment = RecordedEnvironment("package.module.env", {}, [])
    return PersonDataset(folder, policy, {"a_0": spaces, "b_0": spaces}, {"mine": spaces, "other": spaces}, environment)


def rows_of(*actions):
    rows = EpisodeRows(1, SPACES)
    for t_env, action in enumerate(actions):
        rows.decided(t_env, None, np.int64(action), t_env)
        rows.rewarded(action / 2)
    rows.ended(AgentEnd(1, True, False, 3, None))
    return rows


def test_every_episode_is_on_disk_at_once_and_reads_back(tmp_path):
    mine = dataset(tmp_path)
    mine.add(rows_of(0, 2), env_steps=4)
    assert find_dataset(tmp_path, "mine").read(find_dataset(tmp_path, "mine").fragments[0]).rows == 2
    mine.add(rows_of(1), env_steps=2)
    found = find_dataset(tmp_path, "mine")
    batches = [found.read(fragment) for fragment in found.fragments]
    assert [batch["action"].tolist() for batch in batches] == [[0, 2], [1]]
    assert [batch["reward"].tolist() for batch in batches] == [[0.0, 1.0], [0.5]]
    assert [batch.segments["episode"].tolist() for batch in batches] == [[0], [1]]
    assert [fragment.env_steps for fragment in found.fragments] == [4, 2]
    assert (mine.rows, mine.episodes) == (3, 2)


def test_later_games_and_other_policies_are_added_to_the_same_folder(tmp_path):
    dataset(tmp_path).add(rows_of(0), env_steps=1)
    dataset(tmp_path).add(rows_of(1), env_steps=1)
    dataset(tmp_path, "other").add(rows_of(2), env_steps=1)
    assert len(find_dataset(tmp_path, "mine").fragments) == 2
    assert len(find_dataset(tmp_path, "other").fragments) == 1


def test_a_folder_of_other_records_is_refused(tmp_path):
    dataset(tmp_path)
    with pytest.raises(mf.ConfigInvalid, match="already has records"):
        dataset(tmp_path, action=2)


def test_an_agent_that_never_acted_has_no_rows(tmp_path):
    rows = EpisodeRows(0, SPACES)
    rows.rewarded(1.0)
    rows.ended(AgentEnd(0, True, False, 1, None))
    assert rows.batch(0) is None
