"""What a configuration may import is found without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marlflow.config.trust import names_outside
from marlflow.offline.manifest import Manifest, RecordedEnvironment, write_manifest

OFFLINE = "marlflow.offline.environment.recorded_environment"


def test_records_name_what_their_environment_imports(tmp_path: Path) -> None:
    made = RecordedEnvironment("posix.system", {"command": "x"}, [("json.tool.main", {})])
    write_manifest(tmp_path / "records", Manifest({}, {}, made))
    config = {"env": {"_target_": OFFLINE, "folder": str(tmp_path / "records"), "wrappers": []}}
    assert names_outside(config) == {"posix.system", "json.tool.main"}
    assert names_outside(OmegaConf.create(config)) == {"posix.system", "json.tool.main"}
    config["env"]["folder"] = "${oc.env:HOME}/records"
    assert names_outside(OmegaConf.create(config)) == {"${oc.env:HOME}/records"}
    config["env"]["folder"] = str(tmp_path / "nowhere")
    assert names_outside(config) == set()


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("wave:Game-v0", {"wave:Game-v0"}),
        ("wave.games:Space/Game-v0", {"wave.games:Space/Game-v0"}),
        ("Game-v0", set()),
        ("no_such_module:Game-v0", set()),
        ("http://example.org/a", set()),
        ("localhost:6379", set()),
    ],
)
def test_gymnasium_ids_with_a_module_name_what_is_imported(id: str, found: set[str]) -> None:
    sys.modules.pop("wave", None)
    config = OmegaConf.create({"env": {"_target_": "marlflow.env.gymnasium_team.parallel_env", "id": id}})
    assert names_outside(config) == found
    assert "wave" not in sys.modules
