"""Exported policies: their networks compute what the policies do, also where there is no marlflow."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from benchmarks.outside_marlflow import PROGRAM, outside
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.cli.main import main
from marlflow.driver.entrants import Entrant
from marlflow.policy.actor import NetworkActor
from marlflow.policy.recurrent import RecurrentNetworkActor
from marlflow.policy.tensors import as_tensor
from marlflow.policy.warmup import network_of
from marlflow.runtime.spec import PolicySpec
from marlflow.trained import exported_files
from marlflow.trained.export import (
    CheckRows,
    arbitrary_rows,
    check_rows,
    compared,
    difference,
    expected_outputs,
    played_rows,
    portable_of,
)
from marlflow.trained.exported_files import written
from marlflow.trained.portable import PortableActor
from tests.runtime.small_runs import SMALL, SMALL_PPO, SMALL_R2D2, small_run

VECTOR = gym.Box(-np.inf, np.inf, (6,), np.float32)
BOX = gym.Box(np.array([-2, -1, 0], np.float32), np.array([2, 3, 5], np.float32))
PIXELS = gym.Box(0, 255, (12, 12, 3), np.uint8)
NESTED = gym.Dict({"image": PIXELS, "x": gym.Box(-1, 1, (3,)), "kind": gym.Discrete(3, start=2)})
FLAT = gym.Dict({"x": gym.Box(-1, 1, (3,)), "inner": gym.Tuple([gym.MultiDiscrete([3, 2]), gym.MultiBinary(2)])})
DOTTED = gym.Dict({"a": gym.Dict({"b": gym.Box(-1, 1, (2,))}), "a.b": gym.Box(-1, 1, (3,)), "c d": gym.Discrete(3)})
SMALL_CNN = mf.CNN((4,), (3,), (1,), (8,))
SEATED: dict[str, Any] = {"num_agents": 2, "seats": (0,)}

CASES: dict[str, tuple[mf.Algorithm, Any, Spaces]] = {
    "components with masks": (mf.PPO(), SMALL, Spaces(VECTOR, gym.MultiDiscrete([3, 4], start=[0, 2]), True)),
    "bits": (mf.PPO(), SMALL, Spaces(VECTOR, gym.MultiBinary((2, 2)))),
    "pixels": (mf.PPO(), SMALL_CNN, Spaces(PIXELS, gym.Discrete(4))),
    "nested": (mf.PPO(), SMALL_CNN, Spaces(NESTED, gym.Discrete(4))),
    "nested, dense": (mf.PPO(), SMALL, Spaces(NESTED, gym.Discrete(4))),
    "nested without pixels": (mf.PPO(), SMALL, Spaces(FLAT, gym.Discrete(4))),
    "nested with dots": (mf.PPO(), SMALL, Spaces(DOTTED, gym.Discrete(4))),
    "nested numbers": (mf.PPO(), SMALL, Spaces(gym.Tuple([gym.Box(-1, 1, ()), gym.Discrete(3)]), gym.Discrete(4))),
    "double": (mf.PPO(), SMALL, Spaces(VECTOR, gym.Box(-0.1, 0.3, (2,), np.float64))),
    "double, squashed": (mf.SAC(), SMALL, Spaces(VECTOR, gym.Box(-0.1, 0.3, (2,), np.float64))),
    "a number": (mf.PPO(), SMALL, Spaces(gym.Discrete(5), gym.Discrete(4))),
    "no bounds": (mf.PPO(), SMALL, Spaces(VECTOR, gym.Box(-np.inf, np.inf, (2,)))),
    "one number as action": (mf.SAC(), SMALL, Spaces(VECTOR, gym.Box(-1, 1, ()))),
    "tokens": (mf.PPO(), mf.Transformer(1, 8, 2), Spaces(gym.MultiDiscrete([5] * 3), gym.Discrete(4))),
    "LSTM": (mf.RecurrentPPO(), mf.LSTM(8, (8,)), Spaces(NESTED, BOX)),
    "dueling atoms": (mf.DQN(atoms=5, value_min=-1, value_max=1, dueling=True), SMALL, Spaces(VECTOR, gym.Discrete(4))),
    "GRU of a team": (mf.VDN(), mf.GRU(8, (8,)), Spaces(VECTOR, gym.Discrete(4), True, **SEATED)),
}
for _one in SHIPPED:
    if _one.name != "maml":
        _model = mf.GRU(8, (8,)) if _one.capabilities.memory == "needed" else SMALL
        for _space in (gym.Discrete(5, start=1), BOX):
            if type(_space).__name__ in _one.capabilities.actions:
                _spaces = Spaces(VECTOR, _space, isinstance(_space, gym.Discrete), **SEATED)
                CASES[f"{_one.name} {type(_space).__name__}"] = _one, _model, _spaces


def trained(algorithm: mf.Algorithm, model: Any, spaces: Spaces) -> mf.TrainedPolicy:
    return mf.TrainedPolicy(Entrant("agent", {"a": PolicySpec("agent", algorithm, model, spaces, 7)}))


@pytest.mark.parametrize("case", CASES)
def test_the_module_computes_what_the_policy_does(case: str) -> None:
    policy = trained(*CASES[case])
    portable = portable_of(policy)
    rows = arbitrary_rows(policy, 40)
    inputs = [as_tensor(array) for array in portable.inputs_of(rows.obs, rows.memory, rows.mask).values()]
    expected = expected_outputs(policy, portable, rows)
    # With gradients on, as when it is exported: without them dense layers use numpy.
    outputs = dict(zip(portable.outputs, portable(*inputs), strict=True))
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].shape == value.shape
        assert outputs[name].dtype == torch.from_numpy(value).dtype
        np.testing.assert_allclose(outputs[name].detach().numpy(), value, rtol=1e-6, atol=1e-6, err_msg=name)
    legal = policy.spaces.action
    for action in expected["action"]:
        assert legal.contains(np.asarray(action)), f"{action} is not in {legal}"


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_bound_that_float32_rounds_outwards_stays_in_the_space(sign: int) -> None:
    policy = trained(*CASES["double"])
    network: Any = network_of(policy.actor)
    with torch.no_grad():
        network.head.bias.fill_(1e6 * sign)
    box, rows = policy.spaces.action, arbitrary_rows(policy, 3)
    assert isinstance(box, gym.Box)
    portable = portable_of(policy)
    action = dict(zip(portable.outputs, portable(as_tensor(rows.obs)), strict=True))["action"].detach().numpy()
    assert (action == (box.high if sign > 0 else box.low)).all()
    assert not box.contains(action[0].astype(np.float32).astype(np.float64))


def test_a_masked_action_is_never_the_greedy_one() -> None:
    policy = trained(*CASES["components with masks"])
    portable, rows = portable_of(policy), arbitrary_rows(policy, 40)
    assert rows.mask is not None
    action = expected_outputs(policy, portable, rows)["action"] - np.array([0, 2])
    assert rows.mask[np.arange(40), action[:, 0]].all()
    assert rows.mask[np.arange(40), 3 + action[:, 1]].all()
    everything = CheckRows(rows.obs, None, np.ones_like(rows.mask))
    assert not np.array_equal(action, expected_outputs(policy, portable, everything)["action"] - np.array([0, 2]))


@pytest.mark.parametrize("case", ["sac Box", "nested", "nested with dots", "LSTM", "tokens"])
def test_a_pt2_file_computes_it_too_in_batches_of_any_size(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch warns there of a file whose name does not end in .pt2.
    monkeypatch.setattr(logging.getLogger("torch.export.pt2_archive._package"), "handlers", [caplog.handler])
    policy = trained(*CASES[case])
    portable = portable_of(policy)
    with written(portable, tmp_path / "agent.pt2", "pt2") as session:
        found = difference(policy, portable, session, arbitrary_rows(policy, 70))
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert (found.rows, found.of) == (70, "arbitrary")
    assert found.relative <= 1e-6
    assert found.actions == 0


# -- a run ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "carts"
    policies = {"hunters": SMALL_R2D2, "prey": mf.Policy(SMALL_PPO, SMALL), "dice": mf.Policy(mf.Random())}
    mapping = [mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "prey"), mf.Rule("*", "dice")]
    mf.train(small_run(env_steps=240, policies=policies, mapping=mapping), folder)
    return folder


@pytest.mark.parametrize("name", [pytest.param("hunters", marks=pytest.mark.slow), "prey"])
def test_an_onnx_file_runs_with_onnxruntime_and_numpy_alone(name: str, run: Path) -> None:
    exported = mf.export(run, name)
    assert exported.file == run / "exports" / f"{name}.onnx"
    team = mf.load(run)
    policy = team[name]
    with outside(exported.file) as session:
        found = difference(policy, portable_of(policy), session, played_rows(team, policy, 140))
    assert (found.rows, found.of, found.actions) == (140, "played", 0)
    assert max(found.largest, exported.difference.largest) <= 1e-6
    assert (found.probability is not None) == (name == "prey")
    about = json.loads(exported.description.read_text(encoding="utf-8"))
    assert about["source"]["sha256"] == policy.about["sha256"]
    assert [one["name"] for one in about["inputs"]] == ["obs", "memory"][: 1 + policy.is_recurrent]
    memory = {"input": "memory", "output": "next_memory", "begins_with": 0.0} if policy.is_recurrent else None
    assert about["memory"] == memory
    assert about["inputs"][0]["shape"] == ["batch", 4]
    assert about["difference"]["rows"] == 1_000
    assert about["difference"]["of"] == "played"


def test_a_process_outside_imports_nothing_else(run: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError), outside(run / "metrics.jsonl"):
        pass
    words = [sys.executable, "-I", "-c", PROGRAM.replace("import io", "import torch")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "torch is not to be imported here" in done.stderr


def test_rows_are_those_that_the_policy_plays(run: Path) -> None:
    team = mf.load(run)
    policy = team["hunters"]
    rows = played_rows(team, policy, 60)
    assert rows.memory is not None
    assert (len(rows.obs), rows.mask, rows.of) == (60, None, "played")
    # The policy plays one cart, so each row is the next of its episode, or the first one, with no memory yet.
    after = expected_outputs(policy, portable_of(policy), rows)["next_memory"]
    begins = [row for row in range(60) if not rows.memory[row].any()]
    assert begins[0] == 0
    for row in set(range(1, 60)) - set(begins):
        np.testing.assert_allclose(rows.memory[row], after[row - 1], atol=1e-6)
        assert np.abs(rows.obs[row] - rows.obs[row - 1]).max() < 1.0
    again = played_rows(team, policy, 60)
    np.testing.assert_array_equal(again.obs, rows.obs)


def test_rows_are_arbitrary_where_the_environment_cannot_be_played(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise mf.ConfigInvalid(["no such library"])

    monkeypatch.setattr(mf.Team, "played_env", broken)
    assert main(["export", str(run), "policy=prey", "--format", "pt2", f"out={tmp_path / 'prey.pt2'}"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("wrote ")
    assert second.startswith("largest difference from the policy over 1,000 arbitrary rows: ")
    assert third == "the rows are arbitrary, because the environment could not be played: no such library"


def test_a_policy_that_is_never_asked_has_arbitrary_rows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = mf.load(run)
    policy = team["prey"]

    def play(_adapter: object, _episode: object, _players: object, _others: object, watchers: list[Any]) -> None:
        for watcher in watchers:
            watcher.stepped(None)

    monkeypatch.setattr("marlflow.trained.export.play_episode", play)
    rows = check_rows(team, policy, 5)
    assert (rows.of, rows.reason) == ("arbitrary", "'prey' had nothing to decide in 50 env steps")


class Contrary(RecurrentNetworkActor):
    """Takes the action with the lowest logit."""

    def choose(self, outputs: Any, action_mask: Any, mode: Any, generator: Any) -> Any:
        actions = outputs.argmin(1).numpy()
        return actions, np.zeros(len(actions), np.float32)


def test_a_recurrent_policy_that_chooses_by_itself_has_its_outputs_only() -> None:
    policy = trained(mf.RecurrentPPO(), mf.GRU(8, (8,)), Spaces(VECTOR, gym.Discrete(4)))
    network: Any = network_of(policy.actor)
    assert portable_of(policy).outputs == ["logits", "action", "next_memory"]
    network.__class__ = Contrary
    assert portable_of(policy).outputs == ["outputs", "next_memory"]


def test_a_file_that_acts_otherwise_by_the_same_outputs_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contrary(*arguments: Any) -> dict[str, Any]:
        outputs = expected_outputs(*arguments)
        return {**outputs, "action": 1 - outputs["action"]}

    monkeypatch.setattr("marlflow.trained.export.expected_outputs", contrary)
    with pytest.raises(mf.MarlflowError, match=r"would act otherwise than policy 'prey' on 2,000 of 2,000 rows"):
        mf.export(run, "prey", tmp_path / "prey.onnx")
    assert not list(tmp_path.iterdir())


def test_a_team_is_exported_policy_by_policy_and_its_source_is_where_it_comes_from(run: Path, tmp_path: Path) -> None:
    for team in ("team", str(run)):
        with pytest.raises(mf.ConfigInvalid, match=r"has several policies; export one at a time: .*hunters, .*prey"):
            mf.export(run, team, tmp_path / "team.onnx")
    other = tmp_path / "other"
    alone = {"prey": mf.Policy(SMALL_PPO, SMALL)}
    mf.train(small_run(env_steps=160, policies=alone, mapping=[mf.Rule("*", "prey")]), other)
    told = mf.export(run, f"{other}:prey", tmp_path / "prey.onnx").description
    source = json.loads(told.read_text(encoding="utf-8"))["source"]
    assert (source["folder"], source["checkpoint"]) == (str(other), 160)
    assert source["sha256"] == mf.load(other)["prey"].about["sha256"]


def test_differences_are_of_legal_numbers_and_relative_to_the_row() -> None:
    lowest = np.finfo(np.float32).min
    expected = {"logits": np.array([[0.0, 40.0], [0.0, lowest]], np.float32), "action": np.array([1, 0])}
    found = {"logits": np.array([[0.0, 40.5], [0.25, lowest]], np.float32), "action": np.array([1, 1])}
    rows = CheckRows(np.zeros((2, 1)), None, None)
    told = compared(expected, found, (2,), rows)
    assert (told.largest, told.magnitude, told.actions, told.other_actions) == (0.5, 40.0, 1, 1)
    tie = {"logits": np.array([[1.0, 1.0 + 1e-6]]), "action": np.array([1])}
    near = compared(tie, {"logits": np.array([[1.0 + 1e-6, 1.0]]), "action": np.array([0])}, (2,), rows)
    assert (near.actions, near.other_actions) == (1, 0)
    # The second row's outputs are below 1.
    assert told.relative == 0.25
    # Where one action is certain, and where it is the only legal one, logits do not matter.
    assert told.probability == pytest.approx(0.0, abs=1e-12)
    halves = {"logits": np.zeros((1, 4), np.float32)}
    moved = {"logits": np.array([[0.0, 0.0, 0.0, np.log(3.0)]], np.float32)}
    assert compared(halves, moved, (2, 2), rows).probability == pytest.approx(0.25)
    assert compared(halves, moved, (), rows).probability is None


@pytest.mark.parametrize("logits", [[np.nan, 1.0], [0.0, 2.0], [0.0, np.inf]])
def test_outputs_that_are_no_numbers_or_not_masked_differ_by_any_measure(logits: list[float]) -> None:
    lowest = np.finfo(np.float32).min
    expected = {"logits": np.array([[0.0, lowest], [np.nan, lowest]], np.float32)}
    rows = CheckRows(np.zeros((2, 1)), None, None)
    assert compared(expected, expected, (), rows).largest == 0.0
    found = {"logits": np.array([logits, [np.nan, lowest]], np.float32)}
    assert compared(expected, found, (), rows).largest == np.inf


def test_the_command_writes_files_and_prints_the_difference(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "prey.pt2"
    assert main(["export", str(run), "policy=prey", "--format", "pt2", f"out={out}", "checkpoint=240"]) == 0
    printed = capsys.readouterr().out
    wrote, compared_to = printed.splitlines()
    description = out.with_name("prey.pt2.json")
    assert wrote == f"wrote {out} and {description}"
    assert compared_to.startswith("largest difference from the policy over 1,000 rows that it plays: ")
    assert json.loads(description.read_text(encoding="utf-8"))["source"]["checkpoint"] == 240


REFUSED = {
    "several": ({"policy": None}, "has several policies; choose one, policy=hunters for example: hunters, prey, dice"),
    "no network": ({"policy": "dice"}, "policy 'dice' (random) has no network to export"),
    "misspelt": ({"policy": "hunter"}, "there is no member 'hunter'; did you mean 'hunters'?"),
    "format": ({"policy": "prey", "format": "torchscript"}, "there is no format 'torchscript'"),
    "suffix": ({"policy": "prey", "file": "prey.pt2"}, "prey.pt2 must end with .onnx, or give another format"),
    "checkpoint": ({"policy": "prey", "checkpoint": 7}, "checkpoint 7 in "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_exported_is_one_clear_error(case: str, run: Path) -> None:
    settings, message = REFUSED[case]
    with pytest.raises(mf.InvalidInput) as raised:
        mf.export(run, **settings)
    assert message in str(raised.value)


def test_a_policy_that_adapts_while_it_acts_is_refused() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"\(None\) adapts its parameters while it acts, so no fixed network"):
        portable_of(trained(mf.MAML(), SMALL, Spaces(VECTOR, gym.Discrete(3))))


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_files, "find_spec", lambda name: None)
    portable = portable_of(trained(*CASES["ppo Box"]))
    with (
        pytest.raises(mf.ConfigInvalid, match=r"needs onnx and onnxscript: pip install 'marlflow\[onnx\]'; format=pt2"),
        written(portable, tmp_path / "agent.onnx", "onnx"),
    ):
        pass


def test_bad_words_of_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        ("checkpoint=last",): "checkpoint must be best, or the env steps of a checkpoint, not 'last'",
        ("polcy=prey",): "policy",
        ("format=onx",): "onnx",
    }.items():
        assert main(["export", str(run), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["export", str(run / "nowhere")]) == 2


@dataclass(frozen=True)
class Deceiving(mf.PPO):
    """PPO whose network is another one when it is exported."""

    def actor(self, spaces: Spaces, model: Any, seed: int) -> Any:
        actor: Any = network_of(super().actor(spaces, model, seed))
        actor.outputs = lambda obs, memory: (actor(obs) + float(torch.is_grad_enabled()), memory)
        return actor


def test_a_file_that_computes_something_else_is_an_error(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, model, spaces = CASES["ppo Box"]
    policy = trained(Deceiving(), model, replace(spaces, action=gym.Discrete(3), masked=False))
    portable = portable_of(policy)
    assert isinstance(portable, PortableActor)
    assert isinstance(portable.network, NetworkActor)
    with written(portable, tmp_path / "agent.pt2", "pt2") as session:
        found = difference(policy, portable, session, arbitrary_rows(policy, 70))
    assert found.largest == pytest.approx(1.0, abs=1e-5)
    monkeypatch.setattr("marlflow.trained.export.difference", lambda *_: found)
    kept = tmp_path / "kept" / "prey.pt2"
    kept.parent.mkdir()
    kept.write_text("an export of before")
    with pytest.raises(mf.MarlflowError, match=r"else than policy 'prey', and is not written: .* differ by 1"):
        mf.export(run, "prey", kept, "pt2")
    assert [path.name for path in kept.parent.iterdir()] == ["prey.pt2"]
    assert kept.read_text() == "an export of before"
    assert algorithm.name == "ppo"
