"""Exported policies: their networks compute what the policies do, also where there is no marlflow."""

from __future__ import annotations

import json
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
from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid, InvalidInput, MarlflowError
from marlflow.base.spaces import Spaces
from marlflow.cli.main import main
from marlflow.driver.entrants import Entrant
from marlflow.driver.train import train
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import as_tensor
from marlflow.policy.unwrapped import network_of
from marlflow.runtime.spec import PolicySpec
from marlflow.trained import exported_files
from marlflow.trained.export import portable_of
from marlflow.trained.export_check import CheckRows, check_rows, difference, expected_outputs
from marlflow.trained.exported_files import written
from marlflow.trained.policy import TrainedPolicy
from marlflow.trained.portable import PortableActor
from tests.runtime.small_runs import SMALL, SMALL_PPO, SMALL_R2D2, small_run

VECTOR = gym.Box(-np.inf, np.inf, (6,), np.float32)
BOX = gym.Box(np.array([-2, -1, 0], np.float32), np.array([2, 3, 5], np.float32))
PIXELS = gym.Box(0, 255, (12, 12, 3), np.uint8)
NESTED = gym.Dict({"image": PIXELS, "x": gym.Box(-1, 1, (3,)), "kind": gym.Discrete(3, start=2)})
FLAT = gym.Dict({"x": gym.Box(-1, 1, (3,)), "inner": gym.Tuple([gym.MultiDiscrete([3, 2]), gym.MultiBinary(2)])})
SMALL_CNN = mf.CNN((4,), (3,), (1,), (8,))
SEATED: dict[str, Any] = {"num_agents": 2, "seats": (0,)}

CASES: dict[str, tuple[Algorithm, Any, Spaces]] = {
    "components with masks": (mf.PPO(), SMALL, Spaces(VECTOR, gym.MultiDiscrete([3, 4], start=[0, 2]), True)),
    "bits": (mf.PPO(), SMALL, Spaces(VECTOR, gym.MultiBinary((2, 2)))),
    "pixels": (mf.PPO(), SMALL_CNN, Spaces(PIXELS, gym.Discrete(4))),
    "nested": (mf.PPO(), SMALL_CNN, Spaces(NESTED, gym.Discrete(4))),
    "nested, dense": (mf.PPO(), SMALL, Spaces(NESTED, gym.Discrete(4))),
    "nested without pixels": (mf.PPO(), SMALL, Spaces(FLAT, gym.Discrete(4))),
    "a number": (mf.PPO(), SMALL, Spaces(gym.Discrete(5), gym.Discrete(4))),
    "no bounds": (mf.PPO(), SMALL, Spaces(VECTOR, gym.Box(-np.inf, np.inf, (2,)))),
    "one number as action": (mf.SAC(), SMALL, Spaces(VECTOR, gym.Box(-1, 1, ()))),
    "LSTM": (mf.RecurrentPPO(), mf.LSTM(8, (8,)), Spaces(NESTED, BOX)),
    "dueling atoms": (
        mf.DQN(atoms=5, value_min=-1, value_max=1, dueling=True),
        SMALL,
        Spaces(VECTOR, gym.Discrete(4)),
    ),
    "GRU of a team": (mf.VDN(), mf.GRU(8, (8,)), Spaces(VECTOR, gym.Discrete(4), True, **SEATED)),
}
for _one in SHIPPED:
    if _one.name != "maml":
        _model = mf.GRU(8, (8,)) if _one.capabilities.memory == "needed" else SMALL
        for _space in (gym.Discrete(5, start=1), BOX):
            if type(_space).__name__ in _one.capabilities.actions:
                _spaces = Spaces(VECTOR, _space, isinstance(_space, gym.Discrete), **SEATED)
                CASES[f"{_one.name} {type(_space).__name__}"] = _one, _model, _spaces


def trained(algorithm: Algorithm, model: Any, spaces: Spaces) -> TrainedPolicy:
    return TrainedPolicy(Entrant("agent", {"a": PolicySpec("agent", algorithm, model, spaces, 7)}))


@pytest.mark.parametrize("case", CASES)
def test_the_module_computes_what_the_policy_does(case: str) -> None:
    policy = trained(*CASES[case])
    portable = portable_of(policy)
    rows = check_rows(policy, 40)
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
        assert legal.contains(np.asarray(action, legal.dtype)), f"{action} is not in {legal}"


def test_a_masked_action_is_never_the_greedy_one() -> None:
    policy = trained(*CASES["components with masks"])
    portable, rows = portable_of(policy), check_rows(policy, 40)
    assert rows.mask is not None
    action = expected_outputs(policy, portable, rows)["action"] - np.array([0, 2])
    assert rows.mask[np.arange(40), action[:, 0]].all()
    assert rows.mask[np.arange(40), 3 + action[:, 1]].all()
    everything = CheckRows(rows.obs, None, np.ones_like(rows.mask))
    assert not np.array_equal(action, expected_outputs(policy, portable, everything)["action"] - np.array([0, 2]))


@pytest.mark.parametrize("case", ["sac Box", "nested", "LSTM"])
def test_a_pt2_file_computes_it_too_in_batches_of_any_size(case: str, tmp_path: Path) -> None:
    policy = trained(*CASES[case])
    portable = portable_of(policy)
    found = difference(policy, portable, written(portable, tmp_path / "agent.pt2", "pt2"), 70)
    assert found.rows == 70
    assert found.largest <= 1e-6 * max(1.0, found.magnitude)
    assert found.actions == 0


# -- a run ----------------------------------------------------------------------------------------------------------

WITHOUT_MARLFLOW = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("marlflow", "torch", "gymnasium", "onnx"):
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, Blocked())
import json
import numpy as np
import onnxruntime

file, rows = sys.argv[1:]
about = json.load(open(file.removesuffix(".onnx") + ".json"))
session = onnxruntime.InferenceSession(file)
given = dict(np.load(rows))
worst = 0.0
for size in (1, 7):
    for start in range(0, 140, size):
        feed = {one["name"]: given["in:" + one["name"]][start : start + size] for one in about["inputs"]}
        assert {name: str(array.dtype) for name, array in feed.items()} == {
            one["name"]: one["dtype"] for one in about["inputs"]
        }
        found = session.run([one["name"] for one in about["outputs"]], feed)
        for one, value in zip(about["outputs"], found):
            expected = given["out:" + one["name"]][start : start + size]
            assert value.shape == expected.shape, one
            worst = max(worst, float(np.abs(value.astype(float) - expected).max()))
print(worst)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "carts"
    policies = {"hunters": SMALL_R2D2, "prey": mf.Policy(SMALL_PPO, SMALL), "dice": mf.Policy(mf.Random())}
    mapping = [mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "prey"), mf.Rule("*", "dice")]
    train(small_run(env_steps=240, policies=policies, mapping=mapping), folder)
    return folder


def test_an_onnx_file_runs_with_onnxruntime_and_numpy_alone(run: Path, tmp_path: Path) -> None:
    exported = mf.export(run, "hunters")
    assert exported.file == run / "exports" / "hunters.onnx"
    assert exported.difference.largest <= 1e-6
    policy = mf.load(run)["hunters"]
    portable, rows = portable_of(policy), check_rows(policy, 140)
    assert rows.memory is not None
    inputs = portable.inputs_of(rows.obs, rows.memory, rows.mask)
    outputs = expected_outputs(policy, portable, rows)
    named = {f"in:{name}": array for name, array in inputs.items()} | {f"out:{n}": a for n, a in outputs.items()}
    np.savez(tmp_path / "rows.npz", **named)  # type: ignore[arg-type]
    words = [sys.executable, "-I", "-c", WITHOUT_MARLFLOW, str(exported.file), str(tmp_path / "rows.npz")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1e-6
    about = json.loads(exported.description.read_text(encoding="utf-8"))
    assert about["source"]["sha256"] == policy.about["sha256"]
    assert [one["name"] for one in about["inputs"]] == ["obs", "memory"]
    assert about["memory"] == {"input": "memory", "output": "next_memory", "begins_with": 0.0}
    assert about["inputs"][0]["shape"] == ["batch", 4]
    assert about["difference"]["rows"] == 1_000


def test_the_command_writes_files_and_prints_the_difference(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "prey.pt2"
    assert main(["export", str(run), "policy=prey", "--format", "pt2", f"out={out}", "checkpoint=240"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        f"wrote {out} and {out.with_suffix('.json')}\nlargest difference from the policy over 1,000"
    )
    assert json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["source"]["checkpoint"] == 240


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
    with pytest.raises(InvalidInput) as raised:
        mf.export(run, **settings)
    assert message in str(raised.value)


def test_a_policy_that_adapts_while_it_acts_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match=r"\(None\) adapts its parameters while it acts, so no fixed network"):
        portable_of(trained(mf.MAML(), SMALL, Spaces(VECTOR, gym.Discrete(3))))


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported_files, "find_spec", lambda name: None)
    portable = portable_of(trained(*CASES["ppo Box"]))
    with pytest.raises(ConfigInvalid, match=r"needs onnx and onnxscript: pip install 'marlflow\[onnx\]'; format=pt2"):
        written(portable, tmp_path / "agent.onnx", "onnx")


def test_bad_words_of_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in {
        ("checkpoint=last",): "checkpoint must be best, or the env steps of",
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
    found = difference(policy, portable, written(portable, tmp_path / "agent.pt2", "pt2"), 70)
    assert found.largest == pytest.approx(1.0, abs=1e-5)
    monkeypatch.setattr("marlflow.trained.export.difference", lambda *_: found)
    with pytest.raises(MarlflowError, match="computes something else than policy 'prey': outputs differ by 1"):
        mf.export(run, "prey", tmp_path / "prey.pt2", "pt2")
    assert algorithm.name == "ppo"
