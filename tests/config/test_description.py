"""An experiment that is described is built again, equal, and what cannot be is named."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.description import describe
from marlflow.config.recorded import record
from marlflow.config.schema import read_values
from marlflow.driver.checkpointing import identity
from marlflow.env.games.cartpole_team import parallel_env
from tests.config.composition import experiment_of
from tests.runtime.small_runs import small_run

# Of each kind of part, one: optimizers, wrappers, matchmakers, leagues, learners, stop conditions, and records.
SHIPPED = [
    ["experiment=cartpole_team_ppo_dqn", "policies.dqn_team.algorithm.optimizer={_target_: torch.optim.RMSprop}"],
    ["experiment=connect_four_random_seats"],
    ["experiment=simple_spread_qmix", "stop.policies.agent.return_mean=3"],
    ["experiment=connect_four_alphastar"],
    ["experiment=kuhn_nfsp"],
    ["env=pistonball", "wrappers=pixels", "model@default_policy.model=cnn"],
]


def read_again(experiment: mf.Experiment) -> mf.Experiment:
    values, problems = json.loads(record(experiment)["experiment.json"]), list[str]()
    found = read_values(values, problems)
    assert problems == []
    assert found is not None
    return found


@pytest.mark.parametrize("words", SHIPPED, ids=lambda words: words[0])
def test_shipped_experiments_are_built_again(words: list[str]) -> None:
    experiment = experiment_of(*words)
    description = describe(experiment)
    assert list(description.lost) == []
    again = read_again(experiment)
    # RandomSeats and partials are compared by what they are described as.
    assert describe(again).values == description.values


@pytest.mark.parametrize("name", ["simple_speaker_listener_maddpg", "kuhn_nfsp", "simple_tag_qmix_ppo"])
def test_a_checked_experiment_is_recorded_as_it_was_configured(name: str) -> None:
    checked = ready(experiment_of(f"experiment={name}"))
    assert identity(ready(read_again(checked.experiment))) == identity(checked)


def choose(obs: Any, action_mask: Any, generator: Any, action: int = 0) -> Any:
    return np.full(len(obs), action)


class Seats:
    """A matchmaker with settings that nobody can see from outside."""

    def __init__(self, turn: int) -> None:
        self._turn = turn

    def __call__(self, episode: mf.EpisodeId, agents: Any, generator: Any) -> dict[str, str]:
        return dict.fromkeys(agents, "prey" if (episode.episode + self._turn) % 2 else "hunters")


def test_objects_of_a_configuration_are_described_by_their_settings() -> None:
    values = json.loads(record(small_run())["experiment.json"])
    values["mapping"] = {"_target_": f"{__name__}.Seats", "turn": 3}
    problems: list[str] = []
    experiment = read_values(values, problems)
    assert experiment is not None
    description = describe(experiment)
    assert description.values["mapping"] == values["mapping"]
    assert list(description.lost) == []
    assert read_again(experiment).mapping._turn == 3  # type: ignore[union-attr]


def test_the_class_of_a_functional_environment_is_recorded_by_its_import_path() -> None:
    description = describe(replace(small_run(), env=mf.Env("functional", {"make": Seats, "parameters": {"first": 1}})))
    assert list(description.lost) == []
    assert description.values["env"]["make"] == f"{__name__}.Seats"


SMALL = small_run()
LOST: dict[str, tuple[mf.Experiment, str]] = {
    "lambda": (
        replace(SMALL, env=mf.Env(lambda: parallel_env(2))),
        r"env is <lambda> of .*test_description, which cannot be found there",
    ),
    "object": (
        replace(SMALL, mapping=Seats(1)),
        "mapping is of type Seats, which is neither plain data nor a dataclass",
    ),
    "argument": (
        replace(SMALL, env=mf.Env(parallel_env, {"num_agents": np.arange(2)})),
        "env.num_agents is of type ndarray, which is no plain data",
    ),
    "functional": (
        replace(SMALL, env=mf.Env("functional", {"make": lambda: None})),
        "env.make is <lambda> of tests.config.test_description, which cannot be found there",
    ),
    "script": (replace(SMALL, env=mf.Env(choose)), "env is choose of the script that was started"),
}


@pytest.mark.parametrize("case", LOST)
def test_what_cannot_be_built_again_is_named(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, problem = LOST[case]
    if case == "script":
        monkeypatch.setattr(choose, "__module__", "__main__")
    (lost,) = json.loads(record(experiment)["run.json"])["lost"]
    assert re.search(problem, lost), lost


def test_a_partial_is_built_again() -> None:
    policies = {"prey": mf.Policy(mf.Scripted(functools.partial(choose, action=1)))}
    found = read_again(replace(SMALL, policies=policies)).policies["prey"].algorithm
    assert isinstance(found, mf.Scripted)
    assert found.choose([0, 0], None, None).tolist() == [1, 1]
