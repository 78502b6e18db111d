"""Code that somebody planted in the folder of a run, or of records, is not run, whatever command opens the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import marlflow as mf
from marlflow.cli.main import main
from marlflow.config.trust import is_own
from tests.cli.conftest import Marlflow
from tests.cli.test_train import SHORT

MARK = "planted_code_was_here"
# A function of marlflow, in a place of something else, which runs a command.
PLANTED: Mapping[str, Any] = {
    "_target_": "marlflow.cli.main.main",
    "argv": ["plan", "env=python", "env._target_=os.system", f"+env.command=touch {MARK}"],
}
PLANTED_TEXT = f"{{_target_: {PLANTED['_target_']}, argv: {json.dumps(PLANTED['argv'])}}}"
LEARNER = "default_policy"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of marlflow's own parts, with records."""
    run = tmp_path_factory.mktemp("trained") / "run"
    assert main(["train", *SHORT, "record={}", f"hydra.run.dir={run}"]) == 0
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def plant(run: Path, path: str, value: Any, replaces: bool = True) -> None:
    """Put a value into the experiment of a run, in place of the part at `path` or beside its arguments."""
    file = run / "experiment.json"
    values: Any = json.loads(file.read_text(encoding="utf-8"))
    *above, last = path.split(".")
    node = values
    for key in above:
        node = node[key]
    node[last] = value if replaces else {**node[last], **value}
    file.write_text(json.dumps(values), encoding="utf-8")


def add_override(run: Path, *added: str) -> None:
    file = run / ".hydra" / "overrides.yaml"
    file.write_text(yaml.safe_dump([*yaml.safe_load(file.read_text(encoding="utf-8")), *added]), encoding="utf-8")


def opened(command: str) -> Callable[[Marlflow], None]:
    """Return what runs a command on the folder `run`."""

    def open_it(marlflow: Marlflow) -> None:
        if command == "make_env":
            with pytest.raises(mf.ConfigInvalid, match=r"marlflow\.cli\.main\.main"):
                mf.load("run").make_env()
            return
        said = marlflow(*command.split())
        assert (said.code, "marlflow.cli.main.main" in said.err) == (2, True), said.err

    return open_it


COMMANDS = ["evaluate run", "play run video=a.gif", "export run", "make_env"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("path", ["env", f"{LEARNER}.model", f"{LEARNER}.algorithm.optimizer"])
def test_a_target_is_of_the_kind_of_its_place(
    command: str, path: str, run: Path, marlflow: Marlflow, tmp_path: Path
) -> None:
    plant(run, path, PLANTED)
    opened(command)(marlflow)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "override",
    [
        f"+callbacks.mine={PLANTED_TEXT}",
        f"env.wrappers={{mine: {PLANTED_TEXT}}}",
        f"default_policy.algorithm.optimizer={PLANTED_TEXT}",
        f"default_policy.algorithm.discount={PLANTED_TEXT}",
        f"mapping={PLANTED_TEXT}",
        f"+log.sinks.mine={PLANTED_TEXT}",
        "env._target_=marlflow.cli.main.main",
        # Through an interpolation, of a part of a name, and of a resolver.
        "env._target_=${name}.cli.main.main",
        "env._target_=${oc.env:PLANTED_TARGET}",
        "env._target_=${oc.decode:'marlflow.cli.main.main'}",
    ],
)
def test_a_run_does_not_go_on_with_it(
    override: str, run: Path, marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_TARGET", "marlflow.cli.main.main")
    add_override(run, "name=marlflow", override)
    said = marlflow("resume", "run")
    assert (said.code, "add --trust" in said.err) == (2, True), said.err
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("env", {"_target_": "marlflow.env.simulators.gymnasium_team.parallel_env", "id": "planted_module:Game-v0"}),
        (
            "env",
            {
                "_target_": "marlflow.env.simulators.pettingzoo_registry.make",
                "id": "planted_module:butterfly/pistonball-v6",
            },
        ),
        ("env", {"_target_": "marlflow.env.simulators.lbf.parallel_env", "id": "planted_module:Foraging-8x8-2p-3f-v3"}),
        ("env", {"_target_": "marlflow.env.simulators.openspiel.env", "game": "efg_game(filename=planted_module)"}),
        ("env._args_", ["planted_module:Game-v0"]),
        ("env.wrappers", [{"_target_": "marlflow.env.wrappers.shield.shield", "safe": "planted_module.safe"}]),
        (
            "env.wrappers",
            [{"_target_": "marlflow.env.wrappers.shipped.reward_scale", "by": {"_target_": "planted_module.x"}}],
        ),
        (f"{LEARNER}.algorithm", {"_target_": "marlflow.Scripted", "choose": "planted_module.choose"}),
        (
            f"{LEARNER}.algorithm.optimizer",
            {"_target_": "marlflow.TorchOptimizer", "make": "planted_module.x", "settings": {}},
        ),
        (
            f"{LEARNER}.algorithm",
            {"_target_": "marlflow.algorithms.from_run.Frozen", "run": "x", "trust": ["planted_module.x"]},
        ),
        (f"{LEARNER}.init", {"run": "x", "trust": ["planted_module.x"]}),
    ],
)
def test_arguments_import_nothing_either(
    path: str, value: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "planted_module.py").write_text(f"open({MARK!r}, 'w').close()\n", encoding="utf-8")
    plant(run, path, value)
    with pytest.raises(mf.ConfigInvalid, match=r"planted_module.*; look at it"):
        mf.load("run").make_env()
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "override",
    [
        "runtime.address=203.0.113.1:6379",
        "runtime.address=auto",
        "runtime.node_ip_address=0.0.0.0",
        "++record.folder=/somewhere/else",
        "sinks=mlflow",
        "++log.sinks.t={_target_: marlflow.TrackioSink}",
        "++league={_target_: marlflow.league.League, trust: [os.system]}",
    ],
)
def test_somebody_elses_run_neither_connects_nor_writes_elsewhere(override: str, run: Path, marlflow: Marlflow) -> None:
    add_override(run, override)
    said = marlflow("resume", "run")
    assert (said.code, "add --trust" in said.err) == (2, True), said.err


def test_a_folder_of_configuration_that_a_run_names_cannot_configure_hydra(
    run: Path, marlflow: Marlflow, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    handler = f"{{class: logging.FileHandler, filename: {written}}}"
    (tmp_path / "conf" / "experiment" / "planted.yaml").write_text(
        f"# @package _global_\nhydra: {{job_logging: {{handlers: {{x: {handler}}}, root: {{handlers: [x]}}}}}}\n",
        encoding="utf-8",
    )
    file = run / ".hydra" / "hydra.yaml"
    recorded = yaml.safe_load(file.read_text(encoding="utf-8"))
    source = {"path": str(tmp_path / "conf"), "schema": "file", "provider": "command-line"}
    recorded["hydra"]["runtime"]["config_sources"].append(source)
    file.write_text(yaml.safe_dump(recorded), encoding="utf-8")
    add_override(run, "experiment=planted")
    said = marlflow("resume", "run")
    assert (said.code, "other settings of Hydra; look at it" in said.err) == (2, True), said.err
    assert not written.exists()


def test_a_run_of_marlflows_parts_needs_no_trust(run: Path, marlflow: Marlflow) -> None:
    (run / ".hydra" / "signature").unlink()
    # What only training needs is not used where a policy is loaded, and so needs no trust there.
    plant(run, "runtime", {"name": "ray", "address": "203.0.113.1:6379"})
    plant(run, "log.sinks", {"x": {"_target_": "marlflow.WandbSink"}})
    assert marlflow("evaluate", "run", "episodes=1").code == 0
    assert len(mf.load("run").make_env().possible_agents) == 4
    said = marlflow("resume", "run", "stop.env_steps=800")
    assert (said.code, said.err) == (0, "")
    assert is_own(run)


# -- records ----------------------------------------------------------------------------------------------------------

OFFLINE = ("env=offline", "env.folder=run/record", "policy@policies.cart=bc", "runtime=inline")


def change_manifest(run: Path, **changes: Any) -> None:
    file = run / "record" / "manifest.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["environment"] |= changes
    file.write_text(json.dumps(data), encoding="utf-8")


RECORDED: Mapping[str, Mapping[str, Any]] = {
    "factory": {"factory": "os.system", "arguments": {"command": f"touch {MARK}"}},
    "wrapper": {"wrappers": [{"factory": "os.system", "arguments": {}}]},
    "id": {"factory": "marlflow.env.simulators.gymnasium_team.parallel_env", "arguments": {"id": "os.system:x"}},
    "marlflow's": {"factory": "marlflow.cli.main.main", "arguments": {"argv": PLANTED["argv"]}},
}


@pytest.mark.parametrize("command", ["plan", "train", "check-env"])
@pytest.mark.parametrize("changed", RECORDED)
def test_records_of_somebody_else_are_code(
    command: str, changed: str, run: Path, marlflow: Marlflow, tmp_path: Path
) -> None:
    change_manifest(run, **RECORDED[changed])
    said = marlflow(command, *(OFFLINE[:2] if command == "check-env" else OFFLINE))
    assert (said.code, "look at it, and if you trust it set env.trust=[" in said.err) == (2, True), said.err
    assert not (tmp_path / MARK).exists()


def test_records_are_trusted_by_a_flag_which_the_run_remembers(
    run: Path, marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_carts.py").write_text(
        "from marlflow.env.games.cartpole_team import parallel_env\n", encoding="utf-8"
    )
    change_manifest(run, factory="their_carts.parallel_env")
    assert marlflow("plan", *OFFLINE).code == 2
    assert marlflow("plan", "--trust", *OFFLINE).code == 0
    said = marlflow("train", "--trust", *OFFLINE, "hydra.run.dir=offline", "evaluation.episodes=1")
    assert said.code == 0, said.err
    recorded = json.loads((tmp_path / "offline" / "experiment.json").read_text(encoding="utf-8"))
    assert recorded["env"]["trust"] == ["their_carts.parallel_env"]
    # The run is this user's own, and so is what it trusts.
    assert len(mf.load("offline").make_env().possible_agents) == 4
    shutil.move("offline/run.json", "run.json")
    with pytest.raises(mf.ConfigInvalid, match=r"give trust=\['their_carts.parallel_env'\]"):
        mf.load("offline")
    assert len(mf.load("offline", trust=["their_carts.parallel_env"]).make_env().possible_agents) == 4


def test_rows_alone_need_no_trust_and_the_environment_of_an_own_run_does(run: Path, marlflow: Marlflow) -> None:
    change_manifest(run, factory="tests.env.tuple_game.of_carts")
    said = marlflow("train", *OFFLINE, "hydra.run.dir=offline", "evaluation.episodes=0")
    assert said.code == 0, said.err
    with pytest.raises(mf.ConfigInvalid, match=r"set env.trust=\[tests.env.tuple_game.of_carts\]"):
        mf.load("offline").make_env()
    with pytest.raises(mf.ConfigInvalid, match="has no 'of_carts'"):
        mf.load("offline", trust=None).make_env()


@pytest.mark.parametrize("trust", ["5", "null", "os.system", "{a: os.system}", "[x]", "true"])
def test_a_list_of_names_that_is_none_trusts_nothing(trust: str, run: Path, marlflow: Marlflow) -> None:
    change_manifest(run, factory="os.system")
    said = marlflow("plan", *OFFLINE, f"env.trust={trust}")
    assert (said.code, "_target_='os.system'; look at it" in said.err) == (2, True), said.err
    assert "Traceback" not in said.err


def test_own_records_and_records_of_marlflows_parts_need_no_trust(run: Path, marlflow: Marlflow) -> None:
    assert marlflow("plan", *OFFLINE).code == 0
    change_manifest(run, arguments={"num_agents": 4, "max_cycles": 100})
    assert marlflow("plan", *OFFLINE).code == 0
