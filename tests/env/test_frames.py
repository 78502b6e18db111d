"""Whose lines a traceback shows: an environment's own, shipped ones included, and none of marlflow's."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

import marlflow.env
from marlflow.env.episode_location import their_frames
from marlflow.sampling.watchdog import Overdue, Watchdog

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(marlflow.env.__file__).parent
ROOMS = ("", "games.", "simulators.", "wrappers.")
MODULES = [
    importlib.import_module(f"marlflow.env.{room}{path.stem}")
    for room in ROOMS
    for path in sorted((FOLDER / room.rstrip(".")).glob("*.py"))[1:]
]
PART_OF_ONE = ["openspiel_game"]
"""Modules without an environment that an environment is made of."""
NOT_PLAYED = ["spaces_only"]
"""Stands for an environment where records have its agents and spaces, and is never stepped."""
AROUND_OTHERS = [
    "gymnasium_team",
    "lbf",
    "managed_aec",
    "pettingzoo_registry",
    "rware",
]
"""Make environments of others: what fails in these has lines of its own."""


def has_environment(module: ModuleType) -> bool:
    """Whether it defines one, and no wrapper of others."""
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return any(
        issubclass(k, AECEnv | ParallelEnv) and not issubclass(k, BaseWrapper | BaseParallelWrapper) for k in own
    )


def ships(module: ModuleType) -> bool:
    name = module.__name__.rpartition(".")[2]
    return name in PART_OF_ONE or (has_environment(module) and name not in NOT_PLAYED + AROUND_OTHERS)


SHIPPED = [module for module in MODULES if ships(module)]


def raised_in(module: ModuleType, kind: type[BaseException] = ValueError) -> BaseException:
    """An exception with a frame in the module's file."""
    made: dict[str, object] = {"kind": kind}
    exec(compile("def fails():\n    raise kind", str(module.__file__), "exec"), made)
    with pytest.raises(kind) as caught:
        made["fails"]()  # type: ignore[operator]
    return caught.value


def names(error: BaseException) -> list[str]:
    return [frame.name for frame in their_frames(error)]


def test_every_environment_that_the_configuration_offers_is_looked_at_here() -> None:
    targets = [path.read_text() for path in (REPOSITORY / "conf" / "env").glob("*.yaml")]
    offered = {name for text in targets for name in re.findall(r"^_target_: marlflow\.env\.([\w.]+)\.\w+$", text, re.M)}
    assert len(offered) >= 10
    here = {module.__name__.removeprefix("marlflow.env.") for module in SHIPPED}
    around = {f"simulators.{name}" for name in AROUND_OTHERS}
    assert {name for name in offered if not name.startswith(("functional.", "batched."))} <= here | around


@pytest.mark.parametrize("module", SHIPPED, ids=lambda module: module.__name__)
def test_an_environment_that_ships_has_its_lines_shown(module: ModuleType) -> None:
    assert names(raised_in(module))[-1] == "fails"
    hung = Watchdog(1.0).hung_error("env 0", "step()", raised_in(module, Overdue))  # type: ignore[arg-type]
    assert ", in fails" in hung.user_traceback


@pytest.mark.parametrize("module", [m for m in MODULES if m not in SHIPPED], ids=lambda module: module.__name__)
def test_what_opens_and_wraps_environments_has_not(module: ModuleType) -> None:
    assert "fails" not in names(raised_in(module))
