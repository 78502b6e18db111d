"""A learner of two policies and one of a single policy, with frozen versions of all in the table of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import marlflow as mf
from tests.driver.joint_learning import team_run
from tests.driver.kept_runs import assert_equal, by_env, entries_in, kept
from tests.driver.resumed_runs import resumes_exactly

GROUPS = ("speaker", "listener", "walker")
HALF, WHOLE = 440, 880


class FrozenTeams(mf.Matchmaker):
    """Freezes a version of every policy each second round; seats each policy live or as one of its frozen versions.

    `sizes` is the number of frozen entries after each round.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.frozen: list[int] = []
        self.sizes: list[int] = []

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> mf.PopulationChange:
        assert set(published) == set(agent_steps) == set(GROUPS)
        assert published["speaker"] == published["listener"], "one learner publishes both"
        self.rounds += 1
        freeze, forget = [], list[int]()
        if self.rounds % 2:
            freeze = [self.rounds]
        elif len(self.frozen) > 2:
            forget, self.frozen = self.frozen[:-2], self.frozen[-2:]
        self.frozen += freeze
        self.sizes.append(len(self.frozen))
        entries = {f"{group}@{number}": group for number in freeze for group in GROUPS}
        return mf.PopulationChange(entries, [f"{group}@{number}" for number in forget for group in GROUPS])

    def __call__(self, episode: mf.EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        seats = {}
        for agent in agents:
            group = agent.partition("_")[0]
            number = int(generator.choice([0, *self.frozen]))
            seats[agent] = f"{group}@{number}" if number and generator.random() < 0.7 else group
        return seats

    def state(self) -> Any:
        return {"rounds": self.rounds, "frozen": self.frozen, "sizes": self.sizes}

    def load_state(self, tree: Any) -> None:
        self.rounds, self.frozen, self.sizes = tree["rounds"], tree["frozen"], tree["sizes"]


def run(env_steps: int, runtime: Literal["inline", "ray"] = "inline", num_workers: int = 2) -> mf.Experiment:
    rollouts = mf.Rollouts(num_workers=num_workers, fragment_env_steps=40 // num_workers)
    # On-policy throughout: when an off-policy learner publishes is a matter of time over Ray.
    policies = {
        **team_run().policies,
        "walker": mf.Policy(mf.PPO(60, epochs=2, minibatch_agent_steps=20), mf.MLP((8,))),
    }
    return team_run(env_steps, runtime, rollouts=rollouts, policies=policies, mapping=FrozenTeams())


def assert_versions_of_a_pair_are_frozen_together(run_dir: Path) -> None:
    entries = entries_in(run_dir)
    numbers = {name.partition("@")[2] for name in entries}
    assert len(numbers) > 1
    for number in numbers:
        pair = [entries[f"{group}@{number}"] for group in ("speaker", "listener") if f"{group}@{number}" in entries]
        assert len({entry["version"] for entry in pair}) <= 1


def test_a_resumed_run_is_one_that_was_not_ended(tmp_path: Path) -> None:
    resumed = resumes_exactly(run(WHOLE), tmp_path, HALF)
    running = [env["running"]["matchup"] for env in resumed.half["workers"]["envs"] if env["running"]]
    assert any("@" in seat for matchup in running for seat in matchup.values()), "some were to be seated"
    sizes = resumed.trees["driver"]["dealer"]["matchmaker"]["sizes"]
    assert max(sizes) == 3, "the table was to grow"
    assert sum(after < before for before, after in pairwise(sizes)) > 3, "and to shrink"
    assert_versions_of_a_pair_are_frozen_together(resumed.whole)
    learners = resumed.metrics["learners"]
    assert learners["pair"]["version"] > 2
    assert learners["walker"]["version"] > 2
    live = [resumed.metrics["policies"][group]["agent_steps_sampled"] for group in GROUPS]
    assert sum(live) < resumed.metrics["agent_steps"], "rows of frozen versions are nobody's to learn from"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_plays_and_learns_what_inline_does(tmp_path: Path) -> None:
    inline, parts = tmp_path / "inline", tmp_path / "parts"
    mf.train(run(HALF, num_workers=1), inline)
    mf.train(run(HALF // 2, "ray", 1), parts)
    assert mf.resume(run(HALF, "ray", 1), parts).metrics["faults"]["episodes_abandoned"] == 0
    trees = [kept(folder) for folder in (inline, parts)]
    for tree in trees:
        tree["workers"] = by_env(tree["workers"])
        tree["driver"].pop("flow")  # the meters of stages, which differ by runtime
    assert_equal(*trees)
    assert_versions_of_a_pair_are_frozen_together(parts)
