"""An environment's exception is what the user reads first, with either runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import marlflow as mf
from marlflow.cli.failures import failure
from marlflow.env.games.cartpole_team import CartPoleTeam
from tests.runtime.small_runs import SMALL_PPO, policies, small_run


class Fragile(CartPoleTeam):
    """Raises at the tenth step after the first episode, or when it is reset for the fourth time."""

    def __init__(self, fails_in: str) -> None:
        super().__init__(max_cycles=20)
        self.fails_in, self.resets = fails_in, 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.resets += 1
        if self.fails_in == "reset" and self.resets == 4:
            self._snap()
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        if self.fails_in == "step" and self.resets > 2 and self._cycles == 9:
            self._snap()
        return super().step(actions)

    def _snap(self) -> None:
        raise ValueError("the pole snapped")


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.slow)])
def runtime(request: pytest.FixtureRequest) -> Literal["inline", "ray"]:
    """Each runtime, with the session's Ray where it is needed."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("fails_in", ["step", "reset"])
def test_its_own_traceback_stands_on_top(fails_in: str, runtime: Literal["inline", "ray"], tmp_path: Path) -> None:
    make: Callable[[], Fragile] = partial(Fragile, fails_in)
    with pytest.raises(mf.EnvironmentFailed) as caught:
        mf.train(
            small_run(
                runtime,
                env=mf.Env(make, num_envs=4),
                policies=policies(hunters=SMALL_PPO, prey=mf.Random()),
                rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=4),
            ),
            tmp_path,
        )
    cause = caught.value
    assert cause.reason == f"{fails_in}() raised ValueError: the pole snapped"
    assert "cartpole_team" in cause.where
    assert "episode seed" in cause.where
    for told in (str(cause), failure(caught.value)):
        first, second, *_ = told.splitlines()
        assert first == "Traceback (most recent call last):"
        assert __file__ in second
        assert f"in {fails_in}" in second
        assert "site-packages/ray" not in told
        assert "marlflow/sampling" not in told
    assert failure(caught.value).splitlines()[-1] == f"error: {cause.where}: {cause.reason}"
