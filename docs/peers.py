"""`python docs/peers.py` draws images/peers.svg, which the front page shows: speed beside other frameworks.

Every figure is one of comparison.md, with the words that it stands in there.
"""

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parent
FIGURE: Final = DOCS / "images" / "peers.svg"


class Measured(NamedTuple):
    """How many times the env steps per second of a peer marlflow makes, and the words of comparison.md that say so."""

    peer: str
    times: float
    source: str


ALL: Final = (
    Measured("RLlib 2.60, PPO for all agents", 9.4, "9.4 times RLlib's, of medians of three on quiet cores"),
    Measured("BenchMARL 1.5, MAPPO on simple_spread", 7.0, "MAPPO 7.0 the day before, median of seeds 30 to 32"),
    Measured("BenchMARL 1.5, PPO on VMAS navigation *", 2.5, "| PPO, `navigation` | 2.5 |"),
    Measured("BenchMARL 1.5, MAPPO on VMAS navigation *", 1.8, "| MAPPO, `navigation` | 1.8 |"),
    Measured("IPPO by hand in JAX, JaxMARL's spread *", 1.02, "| marlflow PPO, `env=jaxmarl` | 48,000 (1.02) |"),
    Measured("the same, marlflow's spread uncompiled *", 0.45, "| marlflow PPO, `simple_spread` | 21,100 (0.45) |"),
)
_WIDTH, _ROW, _TOP, _LONGEST = 440, 44, 6, 380
_STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1b2330}.bar{fill:#0072b2}.peer{stroke:#5b6675;stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){text{fill:#e6eaf0}.bar{fill:#4da6e0}.peer{stroke:#9aa6b5}}"
)


def drawn() -> str:
    """Return the figure: a bar for each peer, and a line at the peer's own speed, 1."""
    scale = _LONGEST / max(one.times for one in ALL)
    height = _TOP + _ROW * len(ALL) + 20
    rows = []
    for place, one in enumerate(ALL):
        y, width = _TOP + _ROW * place, one.times * scale
        rows.append(f'<text x="0" y="{y + 13}">{escape(one.peer)}</text>')
        rows.append(f'<rect class="bar" x="0" y="{y + 19}" width="{width:.1f}" height="15" rx="2"/>')
        rows.append(f'<text x="{max(width, scale) + 6:.1f}" y="{y + 31}">{one.times:g}</text>')
    lines = (f'<path class="peer" d="M{scale:.1f} {_TOP + _ROW * place + 17}v19"/>' for place in range(len(ALL)))
    rows += [*lines, f'<text x="0" y="{height - 4}">dashed: the peer, 1</text>']
    title = "<title>Env steps per second, as a multiple of the peer's</title>"
    size = f'width="{_WIDTH}" viewBox="0 0 {_WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{_STYLE}</style>'
    return f"{head}{''.join(rows)}</svg>\n"


if __name__ == "__main__":
    FIGURE.write_text(drawn(), encoding="utf-8")
