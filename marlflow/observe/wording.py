"""Format numbers, times and agents as short ASCII text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from marlflow.observe.rates import return_targets
from marlflow.observe.report import LeagueReport

UNKNOWN = "-"
_NUMBER_SUFFIX = re.compile(r"_\d+$")


def full_count(count: int) -> str:
    """Format a count with thousands separators.

    >>> full_count(1234567)
    '1,234,567'
    """
    return f"{count:,}"


def short_count(count: int) -> str:
    """Format a count in at most five characters and three digits, rounded down.

    >>> [short_count(count) for count in (999, 12_345, 1_999_999, 3_000_000_000)]
    ['999', '12.3k', '1.99M', '3.00G']
    """
    for unit, suffix in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            digits = 2 if count < 10 * unit else 1 if count < 100 * unit else 0
            shift = 10**digits
            # Integer division rounds down: 999,999 must not become 1000k.
            return f"{count * shift // unit / shift:.{digits}f}{suffix}"
    return str(count)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, and days if any.

    >>> duration(3723.9), duration(90000)
    ('1:02:03', '1d 01:00:00')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"


def return_digits(*values: float | None) -> int:
    """Return the decimals of returns that are shown together: 2, none for large ones, more if all are small.

    >>> return_digits(-12.3), return_digits(123456.7), return_digits(0.00026, None), return_digits(0.0)
    (2, 0, 5, 2)
    """
    size = max((abs(value) for value in values if value is not None and math.isfinite(value)), default=0.0)
    if size >= 10_000:
        return 0
    # Smaller ones may be rounding errors.
    return 2 if size < 1e-6 or size >= 0.1 else 1 - math.floor(math.log10(size))


def mean_return(value: float | None, digits: int | None = None) -> str:
    """Format a return, by default with its own `return_digits`.

    >>> mean_return(-12.3), mean_return(123456.7), mean_return(None)
    ('-12.30', '123,457', '-')
    """
    if value is None:
        return UNKNOWN
    digits = return_digits(value) if digits is None else digits
    return f"{value:.{digits}f}" if digits else f"{value:,.0f}"


def spread(mean: float | None, std: float | None) -> str:
    """Format a return and its standard deviation.

    >>> spread(-12.3, 4.0), spread(0.0026, 0.0004), spread(None, None)
    ('-12.30 +- 4.00', '0.0026 +- 0.0004', '-')
    """
    # A large one does not take the decimals of the other.
    digits = return_digits(mean, std) or None
    return mean_return(mean) if std is None else f"{mean_return(mean, digits)} +- {mean_return(std, digits)}"


def against(opponents: Collection[str]) -> list[str]:
    """Format the opponents of an evaluation, if any.

    >>> against(["random"]), against(["random", "bot", "rival"]), against([])
    (['vs random'], ['vs 3 opponents'], [])
    """
    if not opponents:
        return []
    return [f"vs {next(iter(opponents))}" if len(opponents) == 1 else f"vs {len(opponents)} opponents"]


def length(env_steps: float | None) -> str:
    """Format a mean episode length, in env steps.

    >>> length(20.06), length(12345.6), length(None)
    ('20.1', '12,346', '-')
    """
    return UNKNOWN if env_steps is None else f"{env_steps:.1f}" if env_steps < 1000 else f"{env_steps:,.0f}"


def small_number(value: float | None) -> str:
    """Format a loss with about three digits, in at most nine characters.

    >>> [small_number(value) for value in (0.0, 0.01234, -1.5, 123.4, 0.00001, 12345.6, None)]
    ['0', '0.012', '-1.500', '123.4', '1.0e-05', '12,346', '-']
    """
    if value is None:
        return UNKNOWN
    size = abs(value)
    if value == 0:
        return "0"
    if not math.isfinite(value) or size < 0.001 or size >= 1e6:
        return f"{value:.1e}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"


def speed(per_s: float | None) -> str:
    """Format a rate per second.

    >>> speed(0.25), speed(34.56), speed(3456.0), speed(0.0), speed(None)
    ('0.25', '34.6', '3,456', '0', '-')
    """
    if per_s is None:
        return UNKNOWN
    if per_s == 0:
        return "0"
    return f"{per_s:.2f}" if per_s < 10 else f"{per_s:.1f}" if per_s < 100 else f"{per_s:,.0f}"


def staleness(versions: float | None) -> str:
    """Format a mean staleness, in versions.

    >>> staleness(0.0), staleness(3.44), staleness(None)
    ('0.0', '3.4', '-')
    """
    return UNKNOWN if versions is None else f"{versions:.1f}"


def infos(found: Mapping[str, float]) -> str:
    """Format the figures of infos.

    >>> infos({"battle_won": 0.5, "cost": 12.345}), infos({})
    ('battle_won 0.500, cost 12.3', '')
    """
    return ", ".join(f"{name} {small_number(value)}" for name, value in found.items())


def loss_terms(loss: Mapping[str, float]) -> str:
    """Format all terms of a loss.

    >>> loss_terms({"policy": -0.0125, "value": 3.5})
    'policy -0.013, value 3.500'
    """
    return ", ".join(f"{name} {small_number(value)}" for name, value in loss.items()) or UNKNOWN


def headline_loss(loss: Mapping[str, float]) -> float | None:
    """Return the number to show of a loss: its `total`, `loss`, or first term."""
    for name in ("total", "loss"):
        if name in loss:
            return loss[name]
    return next(iter(loss.values()), None)


def agents_phrase(agents: Sequence[str]) -> str:
    """Format agents, counting agents of the same group.

    >>> agents_phrase(["adversary_0", "adversary_1", "prey"])
    '2 x adversary, prey'
    """
    stems = [_NUMBER_SUFFIX.sub("", agent) for agent in agents]
    counts = Counter(stems)
    # Reversed, so that the first agent of each group wins.
    first = dict(zip(reversed(stems), reversed(agents), strict=True))
    return (
        ", ".join(first[stem] if count == 1 else f"{count} x {stem}" for stem, count in counts.items()) or "no agents"
    )


def stop_phrase(stop: Mapping[str, float]) -> str:
    """Format the stop conditions.

    >>> stop_phrase({"env_steps": 1e6, "policies.prey.return_mean": 5})
    '1,000,000 env steps or a mean return of 5.00 of prey'
    >>> stop_phrase({"policies.prey.return_mean": 5, "policies.fox.return_mean": 2})
    'a mean return of 5.00 of prey and a mean return of 2.00 of fox'
    >>> stop_phrase({})
    'Ctrl-C'
    """
    conditions = []
    if stop.get("env_steps"):
        conditions.append(f"{int(stop['env_steps']):,} env steps")
    if stop.get("time_s"):
        conditions.append(duration(stop["time_s"]))
    goals = [f"a mean return of {mean_return(goal)} of {policy}" for policy, goal in return_targets(stop).items()]
    conditions += [" and ".join(goals)] if goals else []
    return " or ".join(conditions) or "Ctrl-C"


def faults_phrase(faults: Mapping[str, int]) -> str:
    """Format the faults that happened with their counts.

    >>> faults_phrase({"workers_lost": 2, "env_errors": 0})
    'workers lost 2'
    """
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in faults.items() if count)


def league_phrase(league: LeagueReport) -> str:
    """Format the size of a league, and its last NashConv if there is one."""
    games = f"league {full_count(league['members'])} members, {full_count(league['games'])} games"
    matches = [f"{full_count(league['matches'])} matches"] if league["matches"] else []
    if (nash_conv := league["nash_conv"]) is not None:
        matches.append(f"NashConv {small_number(nash_conv)} at {short_count(league['nash_conv_env_steps'] or 0)}")
    return ", ".join([games, *matches])


def shares_phrase(shares: Mapping[str, float]) -> str:
    """Format time shares in percent.

    >>> shares_phrase({"environments": 0.615, "policies": 0.385})
    'environments 62%, policies 38%'
    """
    return ", ".join(f"{activity} {100 * share:.0f}%" for activity, share in shares.items())


def padded(names: Iterable[str]) -> dict[str, str]:
    """Pad names to the length of the longest.

    >>> padded(["prey", "adversary"])
    {'prey': 'prey     ', 'adversary': 'adversary'}
    """
    names = list(names)
    width = max(map(len, names), default=0)
    return {name: name.ljust(width) for name in names}
