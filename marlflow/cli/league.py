"""`marlflow league`: print the standings of a run's league and draw them, or export a member."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import EXPORT, NASH_CONV, split
from marlflow.cli.resume import suggestion
from marlflow.cli.trust import TRUST

if TYPE_CHECKING:
    from marlflow.runtime.saved_league import SavedLeague, SavedRun

_USAGE = "marlflow league <run directory> [--nash-conv] [--export <member> <file>]"


def run_league(words: list[str]) -> int:
    """Print the standings and write figures, or export a member; return 0. Raises InvalidInput."""
    words, export = _exported(words)
    parsed = split(words, "league", own=(EXPORT, NASH_CONV, TRUST), hydra=False)
    run_dir = _run_dir(parsed.overrides)
    from marlflow.runtime.saved_league import league_of, saved_run
    from marlflow.runtime.saved_runs import skipped_checkpoints, usable

    run = saved_run(run_dir)
    league = league_of(run)
    for notice in skipped_checkpoints(league.checkpoint):
        print(notice)
    if export is not None:
        _export(run, *export)
        return 0
    with usable(league.checkpoint):
        _show(league, run_dir)
        if NASH_CONV in parsed.own_flags:
            from marlflow.cli.nash_conv import show_nash_conv

            print(f"wrote {show_nash_conv(run, league, parsed, _title(run_dir))}")
    return 0


def _exported(words: list[str]) -> tuple[list[str], tuple[str, Path] | None]:
    """Return the words without --export and its two values, and these values."""
    if EXPORT not in words:
        return words, None
    at = words.index(EXPORT)
    values = words[at + 1 : at + 3]
    if len(values) < 2 or any(value.startswith("-") for value in values):
        raise ConfigInvalid([f"{EXPORT} needs a member and a file: {_USAGE}"])
    return [*words[:at], *words[at + 3 :]], (values[0], Path(values[1]))


def _run_dir(words: list[str]) -> Path:
    if not words:
        raise ConfigInvalid([f"league needs the directory of a run: {_USAGE}"])
    if len(words) > 1:
        raise ConfigInvalid([f"league takes the directory of one run and no settings, not {words[1]!r}: {_USAGE}"])
    run_dir = Path(words[0])
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {words[0]}; league needs that of a run: {_USAGE}"])
    if not (run_dir / "checkpoints").is_dir():
        raise ConfigInvalid(
            [
                f"{words[0]} has no checkpoints, so there is no league to read{suggestion(run_dir.resolve())}; a run "
                "takes its first checkpoint after its first round"
            ]
        )
    return run_dir


def _show(league: SavedLeague, run_dir: Path) -> None:
    from marlflow.league.figures import draw_payoffs, draw_ratings
    from marlflow.league.payoff_table import write_payoffs
    from marlflow.league.standings import standings, standings_text

    shown = standings(league.members, league.payoffs, league.ratings, league.versions())
    title = _title(run_dir)
    matches = sum(cell.games for cell in league.matches.cells.values())
    basis = "" if matches else "; results are of training, exploration included"
    print(f"{title}  epoch {league.epoch:,}   {league.games:,} games, {matches:,} matches{basis}")
    print(standings_text(shown, league.algorithms))
    folder = run_dir / "league"
    written = ["payoffs.parquet", "payoff.png"]
    try:
        folder.mkdir(exist_ok=True)
        write_payoffs(folder / "payoffs.parquet", league.tables)
        draw_payoffs(folder / "payoff.png", shown, league.members, league.payoffs, title)
        if any(row.rating is not None for row in shown.rows):
            draw_ratings(folder / "ratings.png", shown, league.members, league.env_steps, title)
            written.append("ratings.png")
    except OSError as error:
        raise ConfigInvalid([f"{folder} cannot be written to: {error}"]) from error
    print(f"wrote {', '.join(written)} into {folder}")


def _title(run_dir: Path) -> str:
    """Return the environment (in OpenSpiel, the game) and mode of the command line, or else the directory's name."""
    from marlflow.config.imports import recorded

    choices = recorded(run_dir, "hydra.yaml", "hydra.runtime.choices")
    env, mode = choices.get("env"), choices.get("league")
    if env == "openspiel":
        env = recorded(run_dir, "config.yaml", "env").get("game")
    if not isinstance(env, str) or env == "python":
        env = run_dir.resolve().name
    return f"{env}  {mode}" if isinstance(mode, str) and mode != "none" else env


def _export(run: SavedRun, member: str, file: Path) -> None:
    from marlflow.config.imports import policy_of
    from marlflow.runtime.saved_policies import to_export

    if file.exists() or file.is_symlink():
        raise ConfigInvalid([f"{file} is there already, and {EXPORT} replaces nothing: give another name or remove it"])
    if not file.parent.is_dir():
        raise ConfigInvalid([f"there is no directory {file.parent} to write {file.name} to"])
    found = policy_of(run, member)
    data = to_export(found)
    try:
        # "x" refuses a file that appeared since.
        with file.open("xb") as target:
            target.write(data)
    except OSError as error:
        raise ConfigInvalid([f"{file} cannot be written: {error}"]) from error
    version = f"version {found.description['version']:,} of {found.description['policy']}"
    print(f"wrote {member} ({version}, {len(found.flat):,} parameters) to {file}")
