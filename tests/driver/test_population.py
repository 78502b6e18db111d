"""Runs whose table of weights grows and shrinks: a policy against frozen versions of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.batches.items import Weights
from marlflow.checks.validation import ready
from marlflow.sampling.protocol import FrozenPolicy
from tests.driver.kept_runs import entries_in, kept
from tests.driver.past_selves import PastSelves, against_past_selves
from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO

HALF, WHOLE = 440, 880
MAIN = mf.Policy(replace(SMALL_PPO, batch_agent_steps=60, minibatch_agent_steps=32), SMALL)
MAINS = {
    "ppo": MAIN,
    "dqn": mf.Policy(SMALL_DQN, SMALL),
    "recurrent_ppo": mf.Policy(
        mf.RecurrentPPO(batch_agent_steps=60, epochs=2, minibatch_agent_steps=32, sequence_agent_steps=8),
        mf.GRU(8, (8,)),
    ),
}


@pytest.mark.parametrize("name", MAINS)
def test_a_run_against_frozen_selves_goes_on_as_it_would_have(name: str, tmp_path: Path) -> None:
    experiment = against_past_selves(MAINS[name], WHOLE, evaluation=mf.Evaluation(every_env_steps=300, episodes=3))
    resumed = resumes_exactly(experiment, tmp_path, HALF)
    running = [env_index["running"]["matchup"] for env_index in resumed.half["workers"]["envs"] if env_index["running"]]
    assert any("@" in entry for matchup in running for entry in matchup.values()), "some were to be seated"
    dealer = resumed.trees["driver"]["dealer"]
    sizes = dealer["matchmaker"]["sizes"]
    assert max(sizes) == 3, "the table was to grow"
    assert sum(after < before for before, after in pairwise(sizes)) > 3, "and to shrink"
    assert set(dealer["population"]["frozen"]) <= set(entries_in(resumed.whole))
    assert len(entries_in(resumed.whole)) < 7 < len(dealer["population"]["used"])


def test_an_entry_is_written_once_and_its_weights_are_those_that_were_published(tmp_path: Path) -> None:
    experiment = against_past_selves(MAIN, WHOLE, checkpoint=mf.CheckpointConfig(every_env_steps=80, keep=20))
    mf.train(experiment, tmp_path)
    inodes: dict[str, set[int]] = {}
    for path in (tmp_path / "checkpoints").glob("*/frozen.*"):
        inodes.setdefault(path.name, set()).add(path.stat().st_ino)
    assert len(inodes) > 5
    assert all(len(found) == 1 for found in inodes.values())
    entries = entries_in(tmp_path)
    versions = [entry["version"] for entry in entries.values()]
    assert len(set(versions)) == len(versions)
    flats = [entry["flat"] for entry in entries.values()]
    assert not any(np.array_equal(one, other) for one, other in pairwise(flats))


def test_returns_of_frozen_entries_are_not_the_policys(tmp_path: Path) -> None:
    class Alone(PastSelves):
        """In every second environment a frozen version plays both carts, in the others the policy itself."""

        def __call__(self, episode: Any, agents: Any, generator: Any) -> dict[str, str]:
            return dict.fromkeys(agents, self.frozen[0] if episode.env % 2 else "main")

    metrics = mf.train(against_past_selves(MAIN, 800, mapping=Alone()), tmp_path).metrics
    main = metrics["policies"]["main"]
    assert set(metrics["policies"]) == {"main"}
    assert 0 < main["episodes"] < metrics["episodes"]
    assert 0 < main["agent_steps_sampled"] < metrics["agent_steps"]
    assert {agent for agent, found in metrics["agents"].items() if found["return_mean"]} == {"cart_0", "cart_1"}


def test_a_frozen_entry_acts_by_its_weights_whatever_the_policy_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced parameters: what was frozen pushes every cart one way, the policy itself the other."""
    from marlflow.sampling.acting_policy import ActingPolicy
    from marlflow.sampling.env_pool import EnvPool
    from marlflow.sampling.weights_table import CohortMembers

    loaded: dict[str, set[int]] = {}
    load, add = ActingPolicy.load, CohortMembers.add

    def forced(weights: Weights, logits: tuple[int, int]) -> Weights:
        flat = np.zeros_like(weights.flat)
        flat[-2:] = logits
        return Weights(weights.version, flat)

    def forced_live(player: ActingPolicy, weights: Weights, with_critic: bool) -> None:
        load(player, forced(weights, (-50, 50)), with_critic)

    def forced_frozen(members: CohortMembers, entry: str, frozen: FrozenPolicy) -> None:
        loaded.setdefault(entry, set()).add(frozen.weights.version)
        add(members, entry, replace(frozen, weights=forced(frozen.weights, (50, -50))))

    monkeypatch.setattr(ActingPolicy, "load", forced_live)
    monkeypatch.setattr(CohortMembers, "add", forced_frozen)
    pushed: dict[str, set[int]] = {}
    put_actions = EnvPool.put_actions

    def watched(envs: EnvPool, player: ActingPolicy, action: Any) -> None:
        pushed.setdefault(player.policy, set()).update(action.tolist())
        put_actions(envs, player, action)

    monkeypatch.setattr(EnvPool, "put_actions", watched)
    experiment = against_past_selves(MAIN, HALF)
    # The method that is watched is only called where environments are stepped one by one.
    mf.train(replace(experiment, env=replace(experiment.env, batched=False)), tmp_path)
    assert len(loaded) > 4
    assert pushed == {"main": {1}, "main@(num_envs)": {0}}
    assert all(len(versions) == 1 for versions in loaded.values())  # by each of two workers, one version


def test_entries_that_nobody_deals_any_more_leave_the_workers_and_the_checkpoints(tmp_path: Path) -> None:
    mf.train(against_past_selves(MAIN, WHOLE), tmp_path)
    population = kept(tmp_path)["driver"]["dealer"]["population"]
    assert set(entries_in(tmp_path)) == {*population["frozen"], *(name for name, *_ in population["leaving"])}
    assert len(population["frozen"]) <= 3


def test_with_a_fixed_mapping_episodes_against_frozen_entries_are_given_up(tmp_path: Path) -> None:
    mf.train(against_past_selves(MAIN, HALF), tmp_path)
    fixed = against_past_selves(MAIN, WHOLE, mapping=(), default_policy=MAIN)
    result = mf.resume(replace(fixed, policies={"main": MAIN}, mapping=rules()), tmp_path)
    assert result.metrics["faults"]["episodes_abandoned"] > 0
    assert not entries_in(tmp_path)


def rules() -> Any:
    from marlflow.sampling.mapping import Rule

    return (Rule("*", "main"),)


def test_a_checkpoint_without_the_weights_of_an_entry_is_refused(tmp_path: Path) -> None:
    from marlflow.matchmaking.dealer import Dealer
    from marlflow.matchmaking.matchmakers import AllowedSeats

    mf.train(against_past_selves(MAIN, HALF), tmp_path)
    dealer = Dealer(PastSelves(), AllowedSeats(("cart_0", "cart_1"), {"main": ("cart_0", "cart_1")}), 4, 0)
    with pytest.raises(mf.CheckpointUnusable, match="it has no weights of the frozen entry 'main@"):
        dealer.load_state(kept(tmp_path)["driver"]["dealer"])


# -- what is refused ------------------------------------------------------------------------------------------------


class Changing(PastSelves):
    """Asks for one change, in the second round."""

    def __init__(self, change: Any) -> None:
        super().__init__(every=100)
        self.change = change

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> mf.PopulationChange:
        found = super().change_population(published, agent_steps)
        return self.change if self.rounds == 2 else found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            mf.PopulationChange({"main@1": "main"}),
            "it froze policy 'main' as 'main@1', and there was such an entry before",
        ),
        (
            mf.PopulationChange({"main": "main"}),
            "it froze policy 'main' as 'main', which is no id of its own; name it main@1",
        ),
        (
            mf.PopulationChange({"x@1": "mian"}),
            "it froze policy 'mian', and there is no such policy; did you mean 'main'?",
        ),
        (
            mf.PopulationChange(forget=["main@7"]),
            "it forgot 'main@7', and there is no such frozen entry; did you mean 'main@1'?",
        ),
        ({"main@2": "main"}, "it gave {'main@2': 'main'}, not a PopulationChange"),
    ],
)
def test_a_change_that_cannot_be_made_ends_the_run(change: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(mf.MatchmakerFailed) as caught:
        mf.train(against_past_selves(MAIN, HALF, mapping=Changing(change)), tmp_path)
    assert caught.value.where == "matchmaker Changing, change_population"
    assert problem in caught.value.reason


def test_a_matchmaker_is_tried_with_what_it_freezes_first() -> None:
    experiment = against_past_selves(MAIN, WHOLE)
    assert ready(experiment).players == {"main": ["cart_0", "cart_1"]}
    assert experiment.mapping.rounds == 0, "a copy was to be asked"  # type: ignore[union-attr]


def test_going_on_with_a_matchmaker_that_freezes_nothing_keeps_what_is_seated(tmp_path: Path) -> None:
    mf.train(against_past_selves(MAIN, HALF), tmp_path)
    plain: mf.Experiment = against_past_selves(MAIN, WHOLE, mapping=mf.RandomSeats(["main"]))
    assert mf.resume(plain, tmp_path).metrics["faults"]["episodes_abandoned"] == 0
