"""What check-env says of costs in infos, and of the turns of managed environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games import cartpole_team, sign, toll
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shipped import reward_scale
from tests.driver.costly import Costly
from tests.sampling.test_batched_costs import Costing


def tried(factory: Any, arguments: Any = None, wrappers: Any = (), episodes: int = 20) -> mf.Trial:
    return mf.check_environment(mf.Env(factory, arguments or {}, wrappers, num_envs=2), episodes, seed=3)


def test_the_cost_of_random_play_is_reported() -> None:
    trial = tried(toll.parallel_env)
    assert trial.ready
    (group,) = trial.groups
    # A road pays 1 more than it costs, so costs are returns less 1.
    assert (group.costs.low, group.costs.high) == (0.0, 1.0)
    assert group.costs.mean == pytest.approx(group.returns.mean - 1.0)
    assert "cost/episode" in str(trial)
    assert ("batched_test", "passed") in [(test.name, test.verdict) for test in trial.tests]


def test_without_costs_nothing_is_said_of_them() -> None:
    trial = tried(cartpole_team.parallel_env, {"max_cycles": 20}, episodes=3)
    assert trial.groups[0].costs is None
    assert "cost" not in str(trial)


class Sometimes(Costly):
    """Cart 1 has a cost at its first env step only."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.begun = False
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        if self.begun:
            infos.get("cart_1", {}).pop("cost", None)
        self.begun = True
        return *result, infos


def test_costs_at_some_env_steps_only_are_a_note() -> None:
    trial = tried(lambda: Sometimes(cartpole_team.parallel_env(max_cycles=20), 1.0), episodes=3)
    (note,) = (note for note in trial.notes if "cost" in note)
    assert note.startswith("cart_1 had no info['cost'] at some env steps: a policy with a CostLimit needs a number")
    assert trial.groups[0].costs is None


def test_costs_after_an_end_count_and_those_of_a_batch_are_those_alone() -> None:
    trial = tried(Costing, episodes=4)
    assert trial.ready
    assert ("batched_test", "passed") in [(test.name, test.verdict) for test in trial.tests]
    (group,) = trial.groups
    # a_0 costs 2 + 4 + 8 until it ends, and 16 + 32 + 64 after; a_1 costs .25 (1 + ... + 6).
    assert (group.costs.low, group.costs.high) == (0.25 * 21, 126.0)


@pytest.mark.parametrize(
    ("wrappers", "every", "text"),
    [((), 8, "1 + 1 / 8 = 1.125 of them"), ((reward_scale,), 5, "1 + 1 / 5 = 1.2 of them")],
)
def test_the_turns_of_a_managed_environment_are_counted(wrappers: Any, every: int, text: str) -> None:
    manage = partial(managed, options=2, every=every, manager="manager", manager_sees="state")
    trial = tried(sign.parallel_env, wrappers=(manage, *wrappers), episodes=3)
    (note,) = (note for note in trial.notes if "turns" in note)
    assert text in note
    assert "end early" not in note
