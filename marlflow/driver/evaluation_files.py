"""The results of an evaluation as text, and as files: `evaluations/<n>.json` with every episode, and `matrix.csv`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import write_new
from marlflow.base.links import check_links
from marlflow.base.return_units import Units
from marlflow.base.sentences import aligned
from marlflow.config.target_nodes import ENV_KEYS, TARGET
from marlflow.league.comparison import (
    CONFIDENCE,
    ComparedGame,
    Comparison,
    Estimate,
    PolicyReturns,
    Results,
    is_constant_sum,
    side_scores,
)
from marlflow.league.game_statistics import NO_WINNER
from marlflow.observe.wording import mean_return, return_digits

if TYPE_CHECKING:
    from marlflow.driver.evaluate import EvaluationResult


_OUTCOMES = ("win", "draw", "loss")
_RETURN = {"mean": "return per agent", "sum": "return, sum over agents"}


def as_table(evaluation: EvaluationResult) -> str:
    """Return the results as text: one line for each policy, or for each pair."""
    return as_tables({"": evaluation})


def as_tables(evaluations: Mapping[str, EvaluationResult], units: Units = "mean") -> str:
    """Return the results of several runs, by name, as a table of policies and one of pairs, with returns in `units`."""
    parts = []
    together = {run: one for run, one in evaluations.items() if one.returns}
    pairs = {run: one for run, one in evaluations.items() if one.comparisons}
    for of_runs, table in ((together, _policy_rows), (pairs, _pair_rows)):
        if of_runs:
            rows = list(table(of_runs, units))
            # One run needs no column with its name.
            parts.append("\n".join(aligned([row[1:] for row in rows] if len(evaluations) == 1 else rows)))
    notes = [
        note for run, one in evaluations.items() for note in _notes(one, f"{run}: " if len(evaluations) > 1 else "")
    ]
    return "\n".join([*parts, *notes])


def _policy_rows(evaluations: Mapping[str, EvaluationResult], units: Units) -> Iterator[list[str]]:
    every = [policy for one in evaluations.values() for policy in one.returns]
    outcomes = any(policy.win is not None for policy in every)
    infos = _info_names(every)
    titles = ["run", "policy", "episodes", f"{_RETURN[units]} [95 %]", "iqm", "median", "length"]
    yield [*titles, *infos, *(_OUTCOMES if outcomes else ())]
    for run, one in evaluations.items():
        for policy in one.returns:
            of = policy.returns(units)
            row = [run, policy.policy, f"{policy.episodes:,}", _with_interval(of.mean)]
            digits = _digits(of.mean)
            row += [f"{of.iqm:.{digits}f}", f"{of.median:.{digits}f}", f"{policy.length:.1f}"]
            row += _info_cells(policy.infos, infos)
            shares = (policy.win, policy.draw, policy.loss)
            yield [*row, *(["-" if share is None else _with_interval(share) for share in shares] if outcomes else ())]


def _pair_rows(evaluations: Mapping[str, EvaluationResult], units: Units) -> Iterator[list[str]]:
    every = [one for evaluation in evaluations.values() for one in evaluation.comparisons]
    # Wins, draws and losses are defined only in constant-sum games, or by the league's own outcome.
    outcomes = any(one.results is not None and one.results.has_winners for one in every)
    infos = _info_names(one.results for one in every if one.results is not None)
    names = list(dict.fromkeys(side for one in every for side in one.by_side))
    sides = names if len(names) > 1 else []
    key, shown = ("win", "win as") if outcomes else ({"mean": "return", "sum": "team_return"}[units], "return as")
    titles = ["run", "member", "opponent", "games", *(_OUTCOMES if outcomes else ()), _RETURN[units]]
    titles += [*([] if outcomes else ["iqm", "median", "length"]), *infos]
    yield [*titles, *(f"{shown} {name}" for name in sides)]
    for run, evaluation in evaluations.items():
        for one in evaluation.comparisons:
            if one.results is None:
                yield [run, one.member, one.opponent, "0", *["-"] * (len(titles) - 4 + len(sides))]
                continue
            found, of = one.results.estimates, one.results.returns(units)
            # Another run in the table may have games with winners, and this one none.
            has_winners = not outcomes or one.results.has_winners
            row = [_with_interval(found[name]) if has_winners else "-" for name in _OUTCOMES if outcomes]
            row.append(_with_interval(of.mean))
            if not outcomes:
                digits = _digits(of.mean)
                row += [f"{of.iqm:.{digits}f}", f"{of.median:.{digits}f}", f"{one.results.length:.1f}"]
            row += _info_cells(one.results.infos, infos)
            shown_sides = one.by_side if has_winners else {}
            by_side = [mean_return(one.by_side[n].estimates[key].value) if n in shown_sides else "-" for n in sides]
            yield [run, one.member, one.opponent, f"{one.results.games:,}", *row, *by_side]


def _info_names(every: Iterable[PolicyReturns | Results]) -> list[str]:
    return list(dict.fromkeys(name for one in every for name in one.infos))


def _info_cells(infos: Mapping[str, Estimate], names: Sequence[str]) -> list[str]:
    return [_with_interval(infos[name]) if name in infos else "-" for name in names]


def _with_interval(estimate: Estimate) -> str:
    digits = _digits(estimate)
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def _digits(estimate: Estimate) -> int:
    # Large ones keep two decimals in a table.
    return return_digits(estimate.value, estimate.low, estimate.high) or 2


_DRAWS = "; mode=as_learned draws actions from what was learned, where that is a distribution"


def _notes(evaluation: EvaluationResult, run: str) -> Iterator[str]:
    unit = "games" if evaluation.comparisons else "episodes"
    acted = f"{_acted(evaluation)}; " if evaluation.modes else ""
    yield f"{run}{acted}intervals are over {unit}, and say nothing about other training seeds"
    if evaluation.lost and not evaluation.comparisons:
        first = f": {evaluation.faults[0].reason}" if evaluation.faults else ""
        yield f"{run}{evaluation.lost:,} episodes broke and are not counted{first}"
    for one in evaluation.comparisons:
        if one.lost:
            yield f"{run}{one.lost:,} games of {one.member} against {one.opponent} broke and are not counted"
    # Where actions are drawn, episodes that are the same are still draws of their own.
    draws = "sampled" in evaluation.modes.values()
    if not draws and len(evaluation.games) > 1 and evaluation.distinct < len(evaluation.games) / 2:
        yield (
            f"{run}only {evaluation.distinct:,} of {len(evaluation.games):,} episodes differ in anything that was seen "
            "or done: greedy policies do the same again where the environment draws the same"
            f"{_DRAWS if evaluation.mode == 'greedy' else ''}"
        )
    if evaluation.env:
        yield f"{run}{_elsewhere(evaluation.env)}"
    if evaluation.comparisons and not _has_winner(evaluation):
        yield f"{run}{NO_WINNER}"
    yield from (f"{run}{note}" for note in _self_play_notes(evaluation))


def _elsewhere(env: Mapping[str, Any]) -> str:
    if TARGET in env:
        env = {name: value for name, value in env.items() if name not in ENV_KEYS and value is not None}
        where = "in another environment"
    else:
        where = "not the run's own environment"
    return f"{where}: {', '.join(f'env.{name}={value}' for name, value in env.items())}"


def _acted(evaluation: EvaluationResult) -> str:
    modes = evaluation.modes
    if len(set(modes.values())) == 1:
        return "all policies act greedily" if "greedy" in modes.values() else "all policies sample their actions"
    by_mode = {mode: [name for name, own in modes.items() if own == mode] for mode in ("greedy", "sampled")}
    return "; ".join(f"{mode}: {', '.join(names)}" for mode, names in by_mode.items())


def _has_winner(evaluation: EvaluationResult) -> bool:
    every = [one.results for one in evaluation.comparisons if one.results is not None]
    return not every or any(results.draw.value < 1.0 for results in every)


def _self_play_notes(evaluation: EvaluationResult) -> Iterator[str]:
    sides = evaluation.sides
    if sides is None or not evaluation.returns:
        return
    scores = [side_scores(sides, game.returns) for game in evaluation.games]
    if is_constant_sum(scores):
        reason = "what one wins the others lose, so its return says nothing"
    elif not any(map(any, scores)):
        # An episode of a team that reached nothing looks like a draw.
        reason = "all scored 0; if what one wins the others lose, its return says nothing"
    else:
        return
    for policy in evaluation.returns:
        played = {role.side for role in sides.roles if set(role.agents) & set(policy.agents)}
        if len(played) == len(sides.names):
            yield f"policy {policy.policy} played all sides, and {reason}; against=random evaluates it"


FORMAT = "marlflow evaluation 1"
FOLDER, MATRIX = "evaluations", "matrix.csv"
_MATRIX_COLUMNS = ("member", "opponent", "side", "games", "games_lost")
_ESTIMATES = ("win", "draw", "loss", "return", "team_return")
_NUMBERS = ("iqm", "median", "length", "team_iqm", "team_median")


def write_evaluation(evaluation: EvaluationResult, run_dir: Path) -> list[Path]:
    """Write the files into a run's folder; return their paths. Raises ConfigInvalid if they cannot be written.

    The matrix is written if there were opponents.
    """
    text = json.dumps(as_json(evaluation, games=True), indent=1) + "\n"
    check_links(run_dir)
    try:
        folder = run_dir / FOLDER
        folder.mkdir(exist_ok=True)
        written = [_write_numbered(folder, text)]
        if evaluation.comparisons:
            matrix = run_dir / MATRIX
            matrix.write_text(as_csv(evaluation), encoding="utf-8", newline="")
            written.append(matrix)
    except OSError as error:
        raise ConfigInvalid([f"{run_dir} cannot be written to: {error}"]) from error
    return written


def _write_numbered(folder: Path, text: str) -> Path:
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    number = max(numbers, default=0) + 1
    while True:
        path = folder / f"{number}.json"
        try:
            write_new(path, text.encode())
        except FileExistsError:
            # Another evaluation of the run has ended at the same time.
            number += 1
        else:
            return path


def as_json(evaluation: EvaluationResult, games: bool = False) -> dict[str, Any]:
    """Return the results as JSON data, with every episode if `games`; keys that end in `_s` are times."""
    data: dict[str, Any] = {
        "format": FORMAT,
        "checkpoint": evaluation.checkpoint.name,
        "seed": evaluation.seed,
        "mode": evaluation.mode,
        "modes": dict(evaluation.modes),
        "env": dict(evaluation.env),
        "confidence": CONFIDENCE,
        "members": {label: dict(about) for label, about in evaluation.about.items()},
        "policies": [_returns(one) for one in evaluation.returns],
        "results": [_comparison(one) for one in evaluation.comparisons],
        "episodes_lost": evaluation.lost,
        "episodes_distinct": evaluation.distinct,
        "faults": [
            {"kind": fault.kind.value, "where": fault.where, "reason": fault.reason} for fault in evaluation.faults
        ],
        "duration_s": evaluation.duration_s,
        "ended_s": evaluation.ended_s,
    }
    if games:
        names = () if evaluation.sides is None else evaluation.sides.names
        data["games"] = [
            {**_of_game(game), "side": None if game.side is None else names[game.side]} for game in evaluation.games
        ]
    return data


def _of_game(game: ComparedGame) -> dict[str, Any]:
    return {key: value for key, value in asdict(game).items() if key != "scores" or value is not None}


def _returns(one: PolicyReturns) -> dict[str, Any]:
    outcomes = {name: asdict(found) for name in ("win", "draw", "loss") if (found := getattr(one, name)) is not None}
    return {
        "policy": one.policy,
        "agents": list(one.agents),
        "episodes": one.episodes,
        "return": asdict(one.mean),
        "team_return": asdict(one.team.mean),
        **_numbers(one),
        "infos": _info_data(one),
        **outcomes,
    }


def _numbers(one: PolicyReturns | Results) -> dict[str, float]:
    numbers = (one.iqm, one.median, one.length, one.team.iqm, one.team.median)
    return dict(zip(_NUMBERS, numbers, strict=True))


def _info_data(one: PolicyReturns | Results) -> dict[str, Any]:
    return {name: asdict(found) for name, found in one.infos.items()}


def _comparison(one: Comparison) -> dict[str, Any]:
    return {
        "member": one.member,
        "opponent": one.opponent,
        "games_lost": one.lost,
        **({"games": 0} if one.results is None else _results(one.results)),
        "as": {side: _results(results) for side, results in one.by_side.items()},
    }


def _results(results: Results) -> dict[str, Any]:
    return {
        "games": results.games,
        "has_winners": results.has_winners,
        **{name: asdict(one) for name, one in results.estimates.items()},
        **_numbers(results),
        "infos": _info_data(results),
    }


def as_csv(evaluation: EvaluationResult) -> str:
    """Return one line for each pair, and for each side of it, with the ends of intervals in separate columns."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    infos = _info_names(one.results for one in evaluation.comparisons if one.results is not None)
    writer.writerow(
        [*_MATRIX_COLUMNS, *_with_ends(_ESTIMATES), *_NUMBERS, *_with_ends(f"infos.{name}" for name in infos)]
    )
    for one in evaluation.comparisons:
        for side, results in {"": one.results, **one.by_side}.items():
            if results is not None:
                lost = "" if side else one.lost
                row = [one.member, one.opponent, side, results.games, lost, *_ends(results.estimates.values())]
                row += [*_numbers(results).values(), *_ends(results.infos.get(name) for name in infos)]
                writer.writerow(["" if cell is None else cell for cell in row])
    return written.getvalue()


def _with_ends(names: Iterable[str]) -> list[str]:
    return [f"{name}{end}" for name in names for end in ("", "_low", "_high")]


def _ends(estimates: Iterable[Estimate | None]) -> Iterator[float | None]:
    for one in estimates:
        yield from (None, None, None) if one is None else (one.value, one.low, one.high)
