"""A manifest says what was recorded so that it can be made again, and runs nothing when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import supersuit
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.env import open_adapter
from marlflow.env.games import cartpole_team
from marlflow.env.make import Wrapper
from marlflow.env.spaces_only import SpacesOnlyEnv
from marlflow.offline.environment import recorded_environment
from marlflow.offline.manifest import (
    Manifest,
    described,
    environment_described,
    read_manifest,
    spaces_of,
    write_manifest,
)
from tests.base.nested_spaces import trees

SEEN, CHOSEN = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)
SPACES = Spaces(SEEN, CHOSEN, masked=True)
STACKED = Wrapper("supersuit.frame_stack_v2", supersuit.frame_stack_v2, {"stack_size": 3})


def manifest(**environment: Any) -> Manifest:
    given = {"factory": "marlflow.env.games.cartpole_team.parallel_env", "arguments": {}, "wrappers": (), **environment}
    return Manifest({"a": SPACES, "b": SPACES}, {"team": SPACES}, environment_described(**given))


@given(observation=trees(), masked=st.booleans())
def test_spaces_come_back_equal_from_json(observation: Any, masked: bool) -> None:
    spaces = Spaces(observation, CHOSEN, masked)
    assert spaces_of(json.loads(json.dumps(described(spaces), allow_nan=False))) == spaces


def test_the_keys_of_a_dict_keep_their_order_which_is_that_of_rows() -> None:
    parts = {"seen": gymnasium.spaces.Discrete(2), "held": gymnasium.spaces.Discrete(3)}
    spaces = Spaces(gymnasium.spaces.Dict(**parts), CHOSEN)
    assert spaces_of(json.loads(json.dumps(described(spaces)))).layout() == spaces.layout()


def test_a_manifest_comes_back_equal(tmp_path: Path) -> None:
    for number, one in enumerate((manifest(), manifest(arguments={"num_agents": 2}, wrappers=[STACKED]))):
        folder = tmp_path / str(number)
        write_manifest(folder, one)
        write_manifest(folder, one)  # as a run that goes on does
        assert read_manifest(folder) == one


def test_an_environment_is_made_again_with_its_wrappers(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(arguments={"num_agents": 2}, wrappers=[STACKED]))
    env = recorded_environment(str(tmp_path))
    assert env.possible_agents == ["cart_0", "cart_1"]
    assert env.observation_space("cart_0").shape == (12,)
    env.close()


def test_a_factory_that_can_be_imported_is_named_by_its_path() -> None:
    made = environment_described(cartpole_team.parallel_env, {"num_agents": 2}, ())
    assert (made.factory, made.unknown) == ("marlflow.env.games.cartpole_team.parallel_env", "")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"factory": lambda: None}, "has no import path"),
        ({"wrappers": [lambda env: env]}, "its wrappers are not named by import paths"),
        ({"arguments": {"size": object()}}, "its arguments are not plain data"),
        ({"arguments": {"size": float("nan")}}, "its arguments are not plain data"),
    ],
)
def test_what_cannot_be_made_again_says_why(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    write_manifest(tmp_path, manifest(**given))
    with pytest.raises(ConfigInvalid, match=f"cannot be made again: .*{reason}"):
        recorded_environment(str(tmp_path))


def test_records_of_an_environment_that_cannot_be_described_are_added_to(tmp_path: Path) -> None:
    def made() -> Manifest:
        return manifest(factory=lambda: None)  # another function each time

    write_manifest(tmp_path, made())
    assert write_manifest(tmp_path, made()) == made()
    assert read_manifest(tmp_path) == made()


def test_records_of_something_else_are_not_added_to(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    with pytest.raises(ConfigInvalid, match=r"already has records, of policies 'team' .*; record into another folder"):
        write_manifest(tmp_path, manifest(arguments={"num_agents": 9}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "has no manifest.json, so it is no folder of records"),
        ("{", r"manifest\.json is damaged: JSONDecodeError"),
        ("[]", r"manifest\.json is damaged: TypeError"),
        ('{"format": "another"}', r"it is of format 'another', not 'marlflow records 2'"),
        ('{"format": "marlflow records 2"}', "manifest.json is damaged: KeyError: 'environment'"),
    ],
)
def test_a_manifest_that_is_none_is_an_error_that_names_it(tmp_path: Path, text: str | None, problem: str) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigInvalid, match=problem):
        read_manifest(tmp_path)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"there is no folder of records .*nowhere"):
        read_manifest(tmp_path / "nowhere")


def test_a_stand_in_has_agents_spaces_and_masks_and_nothing_happens_in_it() -> None:
    env = SpacesOnlyEnv({"a": SPACES, "b": Spaces(SEEN, CHOSEN)})
    adapter = open_adapter(env)
    assert (list(adapter.agents), adapter.declared) == (["a", "b"], True)
    assert [adapter.masked(agent) for agent in adapter.agents] == [True, False]
    assert Spaces(adapter.observation_space("a"), adapter.action_space("a"), True) == SPACES
    turn = adapter.reset(seed=0)
    turn = adapter.act([0] * len(turn.deciding))
    assert (len(turn.deciding), turn.ended, turn.rewards) == (2, [], [0.0, 0.0])
    for agent, seen in env.step({})[0].items():
        assert seen in env.observation_space(agent)
