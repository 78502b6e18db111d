"""Payoffs between members and ratings over time as figures, and payoffs as an Arrow table and a Parquet file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.league.game_statistics import Outcomes
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.standings import REFERENCE, Standing, Standings
from marlflow.observe.figure import COLORS, GRID, INK, NOTE, finish_axes, legend_below, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

import pyarrow as pa
import pyarrow.parquet as pq

from marlflow.base.files import replacing
from marlflow.league.game_statistics import ProfileCell, Returns
from marlflow.league.payoffs import Profile
from marlflow.league.sides import Sides


def payoff_table(tables: Mapping[str, Payoffs]) -> pa.Table:
    """Return one row per table (`train`, `match`) and profile; `tables` have the same sides.

    Columns: `table`; `past`, null or whose reset moved the games away (`main:0`: `main` before its first reset);
    `<role>_member`; `games`, `truncated` and `env_steps`, which are never decayed; for each role `<role>_return_mean`,
    `_return_variance` (unbiased; null with one game) and `_return_se` of all games, and `<role>_recent_mean` and
    `_recent_se`, decayed if a live member plays; for each pair of sides `<side>_against_<side>_wins`, `_draws` and
    `_losses` of the first, which are 0 where a member plays itself.
    """
    sides = next(iter(tables.values())).sides
    rows = [
        _row(sides, name, past, profile, cell)
        for name, payoffs in tables.items()
        for past, profile, cell in _all_cells(payoffs)
    ]
    return pa.Table.from_pylist(rows, schema=_schema(sides))


def write_payoffs(path: Path, tables: Mapping[str, Payoffs]) -> None:
    """Write the table as a Parquet file, replacing an earlier one; raises OSError."""
    with replacing(path) as aside:
        pq.write_table(payoff_table(tables), aside)


def _all_cells(payoffs: Payoffs) -> Iterator[tuple[str | None, Profile, ProfileCell]]:
    for profile, cell in payoffs.cells.items():
        yield None, profile, cell
    for past, cells in payoffs.past.items():
        for profile, cell in cells.items():
            yield past, profile, cell


def _schema(sides: Sides) -> pa.Schema:
    roles = [role.name for role in sides.roles]
    numbers = ("return_mean", "return_variance", "return_se", "recent_mean", "recent_se")
    return pa.schema(
        [
            ("table", pa.string()),
            ("past", pa.string()),
            *((f"{role}_member", pa.string()) for role in roles),
            *((name, pa.int64()) for name in ("games", "truncated", "env_steps")),
            *((f"{role}_{number}", pa.float64()) for role in roles for number in numbers),
            *(
                (f"{one}_against_{other}_{outcome}", pa.int64())
                for one, other in combinations(sides.names, 2)
                for outcome in ("wins", "draws", "losses")
            ),
        ]
    )


def _row(sides: Sides, table: str, past: str | None, profile: Profile, cell: ProfileCell) -> dict[str, Any]:
    row: dict[str, Any] = {"table": table, "past": past}
    row |= {"games": cell.games, "truncated": cell.truncated, "env_steps": cell.env_steps}
    for role, member, returns in zip(sides.roles, profile, cell.roles, strict=True):
        row[f"{role.name}_member"] = member
        row |= {f"{role.name}_{number}": value for number, value in _numbers(returns).items()}
    for (i, j), outcomes in cell.pairs.items():
        pair = f"{sides.names[i]}_against_{sides.names[j]}"
        row |= {f"{pair}_{name}": getattr(outcomes, name) for name in ("wins", "draws", "losses")}
    return row


def _numbers(returns: Returns) -> dict[str, float | None]:
    several = returns.n > 1
    variance = returns.m2 / (returns.n - 1) if several else None
    return {
        "return_mean": returns.mean,
        "return_variance": variance,
        "return_se": math.sqrt(variance / returns.n) if variance is not None else None,
        "recent_mean": returns.decayed_mean,
        "recent_se": returns.standard_error if several else None,
    }


FEW_GAMES = 20
"""Cells with fewer games are hatched."""
MOST_SHOWN = 64
"""The most members in a heatmap; numbers in more cells than these would not be readable."""
_CELL_IN, _CHARACTER_IN = 0.3, 0.07
_UNPLAYED = "#EEEEEE"
_MOST_BARS = 40
_NOTE_WIDTH = 34
_HATCHING = "#777777"


def draw_payoffs(
    out_png: Path, shown: Standings, members: Members, payoffs: Payoffs, title: str, acting: str = ""
) -> None:
    """Draw the share of games that each member on side 1 (a row) wins against each on other sides, draws half a win.

    If sides are interchangeable, a row has the games on any side. Members are in the order of the standings, at most
    the first 64 of a side. `acting` says how they acted in these games. Raises OSError.
    """
    first = [number for number, role in enumerate(members.sides.roles) if role.side == 0]
    others = [number for number, role in enumerate(members.sides.roles) if role.side != 0]
    order = [row.member for row in shown.rows]
    rows, columns = (
        [name for name in order if any(members.plays(name, role) for role in roles)] for roles in (first, others)
    )
    rates, games = _win_rates(payoffs, rows[:MOST_SHOWN], columns[:MOST_SHOWN])
    height, width = (max(1.8, _CELL_IN * count) for count in rates.shape)
    labels = _CHARACTER_IN * max(map(len, order), default=0)
    figure = new_figure(max(4.2, width + labels + 1.5), height + labels + 1.5, title)
    axes = figure.subplots()
    image = _draw_cells(axes, rates, games)
    _label(axes, rows[:MOST_SHOWN], columns[:MOST_SHOWN])
    sides = members.sides.names
    look: dict[str, Any] = {"color": INK, "fontsize": 9, "parse_math": False}
    if not payoffs.symmetric:
        axes.set_ylabel(f"on side 1 ({sides[0]})", **look)
        axes.set_xlabel(f"on {'side 2' if len(sides) == 2 else 'another side'} ({', '.join(sides[1:])})", **look)
    is_cut = max(len(rows), len(columns)) > MOST_SHOWN
    cut = [f"the first {MOST_SHOWN} members of each side"] if is_cut else []
    note = [f"hatched: fewer than {FEW_GAMES} games", "gray: none, or against itself"]
    # A table of few members is narrow.
    acted = [textwrap.fill(f"of {acting}", _NOTE_WIDTH)] if acting else []
    axes.set_title("\n".join([*acted, *cut, *note]), **NOTE)
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 4.0 / height), aspect=18, pad=0.02)
    bar.set_label("share of games won by the row", color=INK, fontsize=9)
    bar.outline.set_visible(False)
    bar.ax.tick_params(color=GRID, labelcolor=INK, labelsize=8)
    save_figure(figure, out_png)


def _win_rates(payoffs: Payoffs, rows: Sequence[str], columns: Sequence[str]) -> tuple[Array, Array]:
    """Return the shares won by rows [R, C], nan without games, and the numbers of games [R, C]."""
    place_of_row = {name: place for place, name in enumerate(rows)}
    place_of_column = {name: place for place, name in enumerate(columns)}
    totals: dict[tuple[int, int], list[Outcomes]] = {}
    roles = payoffs.sides.roles
    for (role, member, _, other), pair in payoffs.pairs.items():
        is_shown = (payoffs.symmetric or roles[role].side == 0) and member in place_of_row and other in place_of_column
        if is_shown and pair.outcomes.games:
            totals.setdefault((place_of_row[member], place_of_column[other]), []).append(pair.outcomes)
    rates, games = np.full((len(rows), len(columns)), np.nan), np.zeros((len(rows), len(columns)), np.int64)
    for at, outcomes in totals.items():
        won = sum(one.decayed_wins + one.decayed_draws / 2 for one in outcomes)
        rates[at] = won / sum(one.decayed_wins + one.decayed_draws + one.decayed_losses for one in outcomes)
        games[at] = sum(one.games for one in outcomes)
    return rates, games


def _draw_cells(axes: Axes, rates: Array, games: Array) -> AxesImage:
    axes.set_facecolor(_UNPLAYED)
    image = axes.imshow(np.ma.masked_invalid(rates), cmap="RdBu", vmin=0.0, vmax=1.0, aspect="equal")
    has_few = (games > 0) & (games < FEW_GAMES)
    _hatch(axes, has_few)
    for (row, column), rate in np.ndenumerate(rates):
        if not np.isnan(rate):
            red, green, blue, _ = image.cmap(float(rate))
            # Luma of ITU-R BT.601.
            is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
            _write_number(axes, (column, row), float(rate), is_dark, bool(has_few[row, column]))
    return image


def _hatch(axes: Axes, where: Array) -> None:
    from matplotlib.collections import LineCollection

    # Matplotlib's own hatching is as dense in small cells as in large ones, and cannot be drawn with thin lines.
    strokes = np.array([[[-0.5, 0.0], [0.0, -0.5]], [[-0.5, 0.5], [0.5, -0.5]], [[0.0, 0.5], [0.5, 0.0]]])
    lines = [stroke + np.array([column, row]) for row, column in np.argwhere(where) for stroke in strokes]
    axes.add_collection(LineCollection(lines, colors=_HATCHING, linewidths=0.7))


def _write_number(axes: Axes, at: tuple[int, int], rate: float, is_dark: bool, is_hatched: bool) -> None:
    # The box keeps hatching away from the number.
    box: dict[str, Any] = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}
    color = "white" if is_dark and not is_hatched else INK
    text = axes.text(*at, f"{rate:.2f}".removeprefix("0"), bbox=box if is_hatched else None, color=color, **look)
    # It takes no room besides the axes; measuring thousands of these would take seconds.
    text.set_in_layout(False)


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), rows, fontsize=8, color=INK, parse_math=False)
    axes.set_xticks(range(len(columns)), columns, fontsize=8, color=INK, rotation=90, parse_math=False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # White lines between the cells.
    axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(rows)), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.8)
    axes.tick_params(which="minor", length=0)


def draw_ratings(
    out_png: Path, shown: Standings, members: Members, env_steps: int, title: str, acting: str = ""
) -> None:
    """Draw the ratings of snapshots over their env steps, and the present ratings of live policies.

    `env_steps` counts the league's env steps so far; `acting` says how members acted in the rated games. Raises
    OSError.
    """
    figure = new_figure(9.0, 5.0, title)
    axes = figure.subplots()
    by_member = {row.member: row for row in shown.rows if row.rating is not None}
    colors = {policy: COLORS[number % len(COLORS)] for number, policy in enumerate(members.incarnations)}
    drawn = [policy for policy in colors if _draw_lineage(axes, policy, members, by_member, env_steps, colors[policy])]
    note: dict[str, Any] = {"xytext": (4, 3), "textcoords": "offset points", "fontsize": 8, "color": "#666666"}
    for name, row in by_member.items():
        if name not in members.snapshots and not members.is_live(name) and row.rating is not None:
            axes.axhline(row.rating.mu, color="#888888", linewidth=1.2, linestyle=(0, (4, 2)))
            at_left = (0.0, row.rating.mu)
            axes.annotate(name, at_left, xycoords=axes.get_yaxis_transform(), parse_math=False, **note)
    axes.set_xlabel("env steps of the league", color=INK)
    axes.set_ylabel(f"rating above {REFERENCE}" if shown.is_relative else "rating", color=INK)
    explained = "line: snapshots; stars: live members; bars or shaded: one standard deviation"
    axes.set_title("\n".join([*([f"of {acting}"] if acting else []), explained]), **NOTE)
    finish_axes(axes)
    last = max([1, env_steps, *(one.env_steps for one in members.snapshots.values())])
    axes.set_xlim(left=0, right=1.03 * last)
    legend_below(figure, {policy: colors[policy] for policy in drawn})
    save_figure(figure, out_png)


def draw_nash_conv(out_png: Path, points: Sequence[tuple[int, float]], title: str) -> None:
    """Draw the NashConv of a league over env steps, from (env steps, value) in order. Raises OSError."""
    figure = new_figure(9.0, 4.5, title)
    axes = figure.subplots()
    steps, values = np.array(points, float).reshape(-1, 2).T
    best = np.minimum.accumulate(values)
    look: dict[str, Any] = {"clip_on": False, "marker": "o", "markersize": 5 if len(points) <= _MOST_BARS else 0}
    axes.plot(steps, values, color=COLORS[0], linewidth=1.4, **look)
    axes.plot(steps, best, color="#888888", linewidth=1.2, linestyle=(0, (4, 2)), drawstyle="steps-post")
    above: dict[str, Any] = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
    axes.annotate(f"{values[-1]:.3g}", (steps[-1], values[-1]), fontsize=8, color=INK, **above)
    axes.set_xlabel("env steps", color=INK)
    axes.set_ylabel("NashConv", color=INK)
    axes.set_title("of the league's solution; 0 is a Nash equilibrium; dashed: the lowest so far", **NOTE)
    finish_axes(axes)
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0, right=1.05 * max(1.0, steps[-1]))
    save_figure(figure, out_png)


def _draw_lineage(
    axes: Axes, policy: str, members: Members, rated: dict[str, Standing], env_steps: int, color: str
) -> bool:
    snapshots = [(one.env_steps, one.name) for one in members.snapshots.values() if one.policy == policy]
    points = [(steps, rating) for steps, name in snapshots if name in rated and (rating := rated[name].rating)]
    bars: dict[str, Any] = {"color": color, "elinewidth": 0.8}
    if points:
        steps, mus, sigmas = np.array([[steps, rating.mu, rating.sigma] for steps, rating in points]).T
        # Unclipped, so that the axis does not hide half of a snapshot of the initial parameters.
        look: dict[str, Any] = {"linewidth": 1.2, "clip_on": False}
        if len(points) <= _MOST_BARS:
            axes.errorbar(steps, mus, yerr=sigmas, marker="o", markersize=5, **look, **bars)
        else:
            axes.plot(steps, mus, color=color, **look)
            axes.fill_between(steps, mus - sigmas, mus + sigmas, color=color, alpha=0.15, linewidth=0)
    live = rated[policy].rating if policy in rated else None
    if live is not None:
        star: dict[str, Any] = {"marker": "*", "markersize": 14, "markeredgecolor": "white", "linestyle": "none"}
        axes.errorbar([env_steps], [live.mu], yerr=[live.sigma], zorder=4, **star, **bars)
    return bool(points) or live is not None
