"""check-env says so if pictures that agents see depend on the render mode."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.config.environment import environment_maker
from marlflow.config.named_environments import named_environment

_DRAWN: dict[str, Any] = {"render_modes": ["rgb_array"], "name": "lamp"}


class Lamp(ParallelEnv):
    """An agent sees the lamp that it switches, in a room that is dark unless it is drawn, or always `lit`."""

    metadata: ClassVar = _DRAWN
    possible_agents: ClassVar = ["switch"]

    def __init__(self, lit: bool = False, render_mode: str | None = None) -> None:
        self.lit, self.render_mode = lit, render_mode

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.left = ["switch"], 5
        return {"switch": self._seen(1)}, {"switch": {}}

    def step(self, actions: Any) -> Any:
        self.left -= 1
        ends = {"switch": self.left == 0}
        self.agents = ["switch"] if self.left else []
        return {"switch": self._seen(actions["switch"])}, {"switch": 1.0}, {"switch": False}, ends, {"switch": {}}

    def _seen(self, on: int) -> Any:
        return np.full((8, 8, 3), 255 * on * (self.lit or self.render_mode is not None), np.uint8)


class Gray(Lamp):
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 255, (8, 8), np.uint8)

    def _seen(self, on: int) -> Any:
        return super()._seen(on)[..., 0]


class Nested(Lamp):
    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"picture": super().observation_space(agent), "speed": spaces.Box(0, 1, (1,))})

    def _seen(self, on: int) -> Any:
        return {"picture": super()._seen(on), "speed": np.zeros(1, np.float32)}


class NotClosed(Lamp):
    def close(self) -> None:
        raise RuntimeError("the window is gone")


class DrawnFails(Lamp):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if self.render_mode is not None:
            raise RuntimeError("no display")
        return super().reset(seed, options)


class Undrawable(Lamp):
    """Says that it can be drawn, but takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


def tried(factory: Any, **arguments: Any) -> mf.Trial:
    return mf.check_environment(mf.Env(factory, arguments, num_envs=2), 5)


def problems(factory: Any, **arguments: Any) -> list[str]:
    return [str(problem) for problem in tried(factory, **arguments).problems]


@pytest.mark.parametrize("factory", [Lamp, Gray, Nested])
def test_pictures_that_are_others_when_they_are_drawn_are_a_problem(factory: Any) -> None:
    (problem,) = problems(factory)
    assert "agents may not see what happens: made with render_mode=rgb_array, which it is not, episode seed" in problem
    assert "differs at env step 0: the observation of 'switch'" in problem
    assert "make it so: env.render_mode=rgb_array" in problem


def test_an_environment_that_fails_when_it_is_drawn_is_not_compared_and_a_note_says_so() -> None:
    trial = tried(DrawnFails)
    assert trial.problems == ()
    (note,) = (note for note in trial.notes if "rgb_array" in note)
    assert "was not compared" in note
    assert "no display" in note


def test_one_that_cannot_be_closed_is_compared() -> None:
    assert any("which it is not" in problem for problem in problems(NotClosed))


@pytest.mark.parametrize("arguments", [{"lit": True}, {"render_mode": "rgb_array"}], ids=str)
def test_pictures_that_do_not_depend_on_it_are_none(arguments: dict[str, Any]) -> None:
    assert problems(Lamp, **arguments) == []


def test_an_environment_that_cannot_be_made_so_is_not_compared() -> None:
    assert problems(Undrawable) == []


@pytest.mark.parametrize("name", ["pistonball", "cooperative_pong"])
def test_environments_that_pettingzoo_draws_in_a_render_mode_only_have_one(name: str) -> None:
    """PettingZoo 1.27 draws no ball into the observations of either without a render mode."""
    shipped = named_environment(name, {})
    assert shipped.arguments["render_mode"] == "rgb_array"
    maker = environment_maker(mf.Env(name, {"render_mode": "human"})).without_window()
    envs = [maker(), environment_maker(mf.Env(f"butterfly/{name}-v6"))()]
    assert [env.render_mode for env in envs] == ["rgb_array", "rgb_array"]
