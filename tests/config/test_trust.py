"""What a configuration may import is found without importing it."""

from __future__ import annotations

import sys

import pytest
from omegaconf import OmegaConf

from marlflow.config.trust import names_outside


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
