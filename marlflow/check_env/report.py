"""Prints a trial: tests, a table of the agents, notes, and the verdict."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleRenderable
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from marlflow.check_env.outcome import Episodes, GroupOutcome, Speed, Spread, TestOutcome, Trial
from marlflow.observe import wording

# Groups that do not fit at this width are printed in further tables below.
_COLUMN_WIDTH = 26
_LABEL_WIDTH = 18


def as_text(trial: Trial, width: int = 100) -> str:
    """Return the report without colors."""
    into = io.StringIO()
    show(trial, Console(file=into, width=width, color_system=None, highlight=False, force_terminal=False))
    return into.getvalue().rstrip()


def show(trial: Trial, console: Console) -> None:
    """Print the report."""
    for part in _parts(trial, console.width):
        if isinstance(part, Text):
            console.print(part, soft_wrap=True)
            continue
        for line in console.render_lines(part, pad=False):
            # Without the spaces that pad a table's columns, which wrap in narrow terminals.
            while line and not line[-1].text.rstrip():
                line.pop()
            last = [Segment(line[-1].text.rstrip(), line[-1].style)] if line else []
            console.print(Segments([*line[:-1], *last, Segment.line()]), soft_wrap=True)


def _parts(trial: Trial, width: int) -> Iterator[ConsoleRenderable]:
    agents = f", {wording.agents_phrase(trial.agents)}" if trial.agents else ""
    yield Text.assemble((trial.name, "bold"), f"  {trial.kind}{agents}, seed {trial.seed}")
    yield Text()
    yield _two_columns([(label, value) for label, value in _about_environment(trial)])
    per_block = max(1, (width - _LABEL_WIDTH) // _COLUMN_WIDTH)
    for first in range(0, len(trial.groups), per_block):
        yield Text()
        yield _groups(trial.groups[first : first + per_block], trial.episodes is not None)
    if trial.notes:
        yield Text()
        yield Text("worth knowing", style="bold")
        yield _bullets([("-", Text(note)) for note in trial.notes])
    yield Text()
    yield from _verdict(trial)


def _about_environment(trial: Trial) -> Iterator[tuple[str, Text]]:
    for test in trial.tests:
        yield test.name, _test(test)
    if trial.episodes is None:
        return
    episodes = trial.episodes
    yield "random episodes", _played(episodes)
    if episodes.length is not None:
        yield "length", Text(f"{_spread(episodes.length, 0)} env steps")
    if episodes.conserved is not None:
        yield "rewards", _rewards(episodes)
    if trial.reproducible is not None:
        yield "reproducible", _green("yes") if trial.reproducible else _red("no")
    yield "env.state()", Text(trial.state or "none")
    if trial.speed is not None:
        yield "speed", Text(_speed(trial.speed, episodes))


def _test(test: TestOutcome) -> Text:
    if test.verdict == "passed":
        return _green("passed")
    text = f"{test.verdict}: {test.why}" + (f" ({test.where})" if test.where else "")
    return _red(text) if test.verdict == "failed" else Text(text)


def _played(episodes: Episodes) -> Text:
    if episodes.failed_in is not None:
        return _red(f"failed in episode {episodes.failed_in:,} of {episodes.asked:,}")
    played = f"{episodes.played:,}, {episodes.env_steps:,} env steps"
    if episodes.out_of_time_s is not None:
        return Text(f"{played}; stopped after {episodes.out_of_time_s:g} s, before all {episodes.asked:,} were played")
    return Text(played)


def _rewards(episodes: Episodes) -> Text:
    if not episodes.conserved:
        return _red("not conserved")
    sums = {True: "zero-sum", False: "not zero-sum", None: "but all of them are zero"}
    return _green(f"conserved, {sums[episodes.zero_sum]}")


def _speed(speed: Speed, episodes: Episodes) -> str:
    bare, worker = wording.speed(speed.bare_env_steps_per_s), wording.speed(speed.worker_env_steps_per_s)
    num_envs = "1 environment" if speed.num_envs == 1 else f"{speed.num_envs} environments"
    return (
        f"{bare} env steps/s bare, {worker} in a rollout worker ({num_envs}, {speed.networks}): {speed.ratio:.2f}\n"
        f"of the worker's time: environment {speed.env_share:.0%}, policies {speed.policy_share:.0%}, "
        f"marlflow {speed.bookkeeping_share:.0%}; slowest step {_seconds(episodes.slowest_step_s)}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.2g} ms"


# -- table of agents --------------------------------------------------------------------------------------------------


def _groups(groups: Sequence[GroupOutcome], played: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True, min_width=_LABEL_WIDTH - 2, style="dim")
    for group in groups:
        table.add_column(Text(group.name), header_style="bold", overflow="fold")
    for label, cell in (*_SPACES, *(_EPISODES if played else ()), *_ALGORITHMS):
        cells = [cell(group) for group in groups]
        if any(str(text) for text in cells):
            table.add_row(label, *cells)
    return table


_Cell = Callable[[GroupOutcome], Text]


def _agents(group: GroupOutcome) -> Text:
    first, *rest = group.agents
    return Text(
        first if not rest else f"{len(group.agents)}: {first} to {rest[-1]}" if len(rest) > 1 else f"{first}, {rest[0]}"
    )


def _masks(group: GroupOutcome) -> Text:
    if group.legal_mean is None:
        return Text(group.masks)
    return Text(f"{group.masks}, {group.legal_mean:.3g} of {group.num_actions} legal")


def _returns(group: GroupOutcome) -> Text:
    return Text("" if group.returns is None else _spread(group.returns, 2))


def _costs(group: GroupOutcome) -> Text:
    return Text("" if group.costs is None else _spread(group.costs, 2))


def _common_reward(group: GroupOutcome) -> Text:
    return Text({True: "always equal", False: "not always equal", None: ""}[group.common_reward])


def _decisions(group: GroupOutcome) -> Text:
    return Text("" if group.decisions is None else _spread(group.decisions, 0))


def _ended(group: GroupOutcome) -> Text:
    ended = group.terminated + group.truncated
    return Text(f"{group.terminated:,} terminated, {group.truncated:,} truncated" if ended else "")


def _never(group: GroupOutcome) -> Text:
    return _red(", ".join(group.never_acted)) if group.never_acted else Text()


def _unattributed(group: GroupOutcome) -> Text:
    return Text(f"{group.reward_unattributed:g}" if group.reward_unattributed else "")


_SPACES: tuple[tuple[str, _Cell], ...] = (
    ("agents", _agents),
    ("observations", lambda group: Text(group.observation_space)),
    ("actions", lambda group: Text(group.action_space)),
    ("action masks", _masks),
)
_EPISODES: tuple[tuple[str, _Cell], ...] = (
    ("decisions/episode", _decisions),
    ("return/episode", _returns),
    ("cost/episode", _costs),
    ("agents' rewards", _common_reward),
    ("ends", _ended),
    ("never acted", _never),
    ("unattributed", _unattributed),
)


def _able(group: GroupOutcome) -> Text:
    return _green(", ".join(name for name, reason in group.algorithms.items() if not reason))


def _unable(group: GroupOutcome) -> Text:
    # Algorithms with the same reason share a line.
    reasons = dict.fromkeys(reason for reason in group.algorithms.values() if reason)
    names = {
        reason: ", ".join(name for name, group_reason in group.algorithms.items() if group_reason == reason)
        for reason in reasons
    }
    return Text("\n".join(f"{algorithms}: {reason}" for reason, algorithms in names.items()), style="yellow")


_ALGORITHMS: tuple[tuple[str, _Cell], ...] = (("can play", _able), ("cannot play", _unable))


def _spread(spread: Spread, decimals: int) -> str:
    low, high = (_amount(value, decimals) for value in (spread.low, spread.high))
    mean = _amount(spread.mean, decimals if spread.low == spread.high else max(1, decimals))
    return mean if low == high else f"{mean} ({low} to {high})"


def _amount(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    # Rounding makes 0 of small amounts, with a minus before it of negative ones.
    return text if text.strip("-0.,") else f"{value + 0.0:.2g}"


# -- verdict ----------------------------------------------------------------------------------------------------------


def _verdict(trial: Trial) -> Iterator[ConsoleRenderable]:
    if trial.ready:
        yield Text("ready for marlflow", style="bold green")
        return
    for problem in trial.problems:
        if problem.user_traceback:
            yield Text(problem.user_traceback.rstrip())
            yield Text()
    count = "1 thing is" if len(trial.problems) == 1 else f"{len(trial.problems)} things are"
    yield Text(f"not ready for marlflow: {count} wrong", style="bold red")
    yield _bullets(
        [(f"{n}.", Text(f"{problem.what}\n-> {problem.remedy}")) for n, problem in enumerate(trial.problems, 1)]
    )


def _two_columns(lines: Sequence[tuple[str, Text]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=_LABEL_WIDTH - 2, style="dim")
    table.add_column(overflow="fold")
    for label, value in lines:
        table.add_row(label, value)
    return table


def _bullets(items: Sequence[tuple[str, Text]]) -> Padding:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for mark, text in items:
        table.add_row(mark, text)
    return Padding(table, (0, 0, 0, 2))


def _green(text: str) -> Text:
    return Text(text, style="green")


def _red(text: str) -> Text:
    return Text(text, style="red")
