"""Output, logs and warnings of a rollout worker reach the driver, also during a call that does not return."""

# ruff: noqa: T201
from __future__ import annotations

import asyncio
import logging
import pdb
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.host import refuse_debuggers
from marlflow.sampling.messages import Logged, News, Printed, StepRunning
from marlflow.sampling.protocol import Request
from tests.runtime.small_runs import small_spec

pytestmark = pytest.mark.slow


class Talks(CartPoleTeam):
    """Says something in its first step; hangs in its third until a file is there; is debugged in its fifth."""

    def __init__(self, go_on: Path) -> None:
        super().__init__()
        self._go_on = go_on

    def step(self, actions: dict[str, int]) -> Any:
        if self._cycles == 0:
            print("on standard output")
            print("on standard error", file=sys.stderr)
            logging.getLogger("talks").warning("in the log")
            warnings.warn("as a warning", UserWarning, stacklevel=1)
        while self._cycles == 2 and not self._go_on.exists():
            time.sleep(0.1)
        if self._cycles == 4:
            breakpoint()
        return super().step(actions)


async def _round(parts: RunComponents) -> Any:
    weights = parts.published()
    return await parts.workers.collect(Request(0, weights, {}))


def test_what_an_environment_says_and_where_it_hangs_comes_to_the_driver(ray_session: None, tmp_path: Path) -> None:
    news: list[News] = []
    go_on = tmp_path / "go_on"

    def take(one: News) -> None:
        news.append(one)
        if isinstance(one, StepRunning):
            go_on.touch()

    runtime = RayRuntime()
    spec = small_spec(
        env=mf.Env(Talks, {"go_on": go_on}, num_envs=1), rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=40)
    )
    try:
        parts = runtime.start(spec, on_news=take)
        with pytest.raises(mf.EnvironmentFailed, match=r"breakpoint\(\) needs a terminal.* run with runtime=inline"):
            asyncio.run(_round(parts))
    finally:
        runtime.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "marlflow-inbox"]
    env = "env 0"
    assert Printed(0, env, "on standard output") in news
    assert Printed(0, env, "on standard error") in news
    assert Logged(0, env, "talks", logging.WARNING, "in the log") in news
    assert any(isinstance(one, Printed) and one.text.endswith("UserWarning: as a warning") for one in news)
    running = [one for one in news if isinstance(one, StepRunning)]
    assert running
    assert all(one.where.endswith("env step 3: step()") for one in running)


def test_no_debugger_waits_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setattr(pdb, "set_trace", pdb.set_trace)
    refuse_debuggers()
    for stop in (breakpoint, pdb.set_trace):
        with pytest.raises(RuntimeError, match="run with runtime=inline"):
            stop()
