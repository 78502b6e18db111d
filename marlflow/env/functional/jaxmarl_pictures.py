"""Pictures of JaxMARL's environments by JaxMARL's own viewers.

The viewers of STORM and the coin game need an older numpy and Matplotlib; the other environments only print. Viewers
are imported when they draw, because training needs none.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxmarl.environments.mpe.simple import SimpleMPE
from jaxmarl.environments.mpe.simple_push import SimplePushMPE
from jaxmarl.environments.overcooked.overcooked import Overcooked
from jaxmarl.environments.overcooked_v2.overcooked import OvercookedV2
from jaxmarl.environments.smax.heuristic_enemy_smax_env import EnemySMAX

from marlflow.base.arrays import Array
from marlflow.env.functional.jaxmarl_import import SMAX_CLASSES

Painter = Callable[[Any, Any], Array]


def painter_of(env: Any) -> Painter | None:
    """Return a function of the environment and its state that draws uint8 [height, width, 3]; None if there is none."""
    return next((painter for kinds, painter in _PAINTERS if isinstance(env, kinds)), None)


def _particles(env: Any, state: Any) -> Array:
    from jaxmarl.environments.mpe.mpe_visualizer import MPEVisualizer
    from matplotlib import pyplot as plt

    # Its constructor prints, and draws in a figure of pyplot's, which would be kept for a window.
    with contextlib.redirect_stdout(io.StringIO()):
        figure = MPEVisualizer(env, [state]).fig
    plt.close(figure)
    return _drawn(figure)


def _battle(env: Any, state: Any) -> Array:
    from matplotlib.figure import Figure

    if isinstance(env, EnemySMAX):
        env, state = env._env, state.state
    figure = Figure((5, 5))
    axes = figure.add_subplot()
    # No shots, as a state does not tell them: action 0 is a move.
    still = dict.fromkeys(env.agents, 0)
    # It draws, puts the picture of its own picture on top, and returns that.
    env.init_render(axes, (None, state, still), 0, int(state.step)).remove()
    axes.set(xlim=(0, env.map_width), ylim=(0, env.map_height), aspect="equal")
    return _drawn(figure)


def _kitchen(env: Any, state: Any) -> Array:
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

    around = env.agent_view_size - 2
    grid = np.asarray(state.maze_map[around:-around, around:-around, :])
    picture: Array = OvercookedVisualizer._render_grid(
        grid, agent_dir_idx=state.agent_dir_idx, agent_inv=state.agent_inv
    )
    return picture


def _second_kitchen(env: Any, state: Any) -> Array:
    del env
    frames = _viewer().render_sequence(jax.tree_util.tree_map(lambda leaf: leaf[None], state))
    return np.asarray(frames[0], np.uint8)


@functools.cache
def _viewer() -> Any:
    from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer

    # Each one compiles for itself.
    return OvercookedV2Visualizer()


def _drawn(figure: Any) -> Array:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    # Not by the figure's own canvas, which may be of a window.
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.array(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]


_PAINTERS: tuple[tuple[Any, Painter | None], ...] = (
    # JaxMARL's viewer takes its colors, which are numbers, for lists.
    (SimplePushMPE, None),
    (SimpleMPE, _particles),
    (SMAX_CLASSES, _battle),
    (Overcooked, _kitchen),
    (OvercookedV2, _second_kitchen),
)
