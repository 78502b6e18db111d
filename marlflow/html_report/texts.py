"""Numbers and names as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "–"


def amount(value: float | None, digits: int = 0) -> str:
    """Return a number with separators.

    >>> amount(30720), amount(-0.4815, 2), amount(None)
    ('30,720', '−0.48', '–')
    """
    if value is None:
        return UNKNOWN
    text = f"{value:,.{digits}f}"
    # A minus, and none before a zero.
    return text.lstrip("-") if not text.strip("-0.,") else text.replace("-", "−")


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units.

    >>> duration(5.31), duration(75), duration(4000), duration(None)
    ('5.3 s', '1 min 15 s', '1 h 7 min', '–')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.256), percent(0.004), percent(0.0)
    ('26 %', '0.4 %', '0 %')
    """
    return f"{100 * share:.{1 if 0.0005 <= share < 0.0095 else 0}f} %"


def seeds(known: Sequence[int]) -> str:
    """Return seeds in order, of three or more in a row the first and the last.

    >>> seeds([0, 1, 2, 3, 7, 7])
    '0–3, 7, 7'
    """
    parts = list[list[int]]()
    for seed in sorted(known):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    texts = [f"{part[0]}–{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts]
    return ", ".join(texts)


def count(number: int, one: str, several: str = "") -> str:
    """Return a number of things.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
