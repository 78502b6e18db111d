"""The payoff tables as Arrow and Parquet: literal rows, agreement with a naive count, and failed writes."""

import math
import statistics
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from marlflow.league import figures as module
from marlflow.league.figures import payoff_table, write_payoffs
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.sides import default_sides
from tests.league.population import PAIR


def test_a_row_has_all_of_a_profile() -> None:
    train, match = Payoffs(PAIR, live=["main"], decay=0.5), Payoffs(PAIR)
    for returns, is_truncated in (((1.0, -1.0), False), ((0.0, 0.0), True), ((3.0, -3.0), False)):
        train.add(Game(("main", "main@1"), returns, env_steps=7, truncated=is_truncated))
    match.add(Game(("main@1", "main"), (-2.0, 2.0), env_steps=9))
    first, second = payoff_table({"train": train, "match": match}).to_pylist()
    assert first == {
        "table": "train",
        "past": None,
        "player_0_member": "main",
        "player_1_member": "main@1",
        "games": 3,
        "truncated": 1,
        "env_steps": 21,
        "player_0_return_mean": pytest.approx(4 / 3),
        "player_0_return_variance": pytest.approx(7 / 3),
        "player_0_return_se": pytest.approx(math.sqrt(7) / 3),
        "player_0_recent_mean": pytest.approx((0.25 * 1 + 0.5 * 0 + 3) / 1.75),
        "player_0_recent_se": pytest.approx(train.cells["main", "main@1"].roles[0].standard_error),
        "player_1_return_mean": pytest.approx(-4 / 3),
        "player_1_return_variance": pytest.approx(7 / 3),
        "player_1_return_se": pytest.approx(math.sqrt(7) / 3),
        "player_1_recent_mean": pytest.approx(-(0.25 * 1 + 0.5 * 0 + 3) / 1.75),
        "player_1_recent_se": pytest.approx(train.cells["main", "main@1"].roles[1].standard_error),
        "player_0_against_player_1_wins": 2,
        "player_0_against_player_1_draws": 1,
        "player_0_against_player_1_losses": 0,
    }
    assert (second["table"], second["player_0_member"], second["games"]) == ("match", "main@1", 1)
    assert second["player_0_against_player_1_losses"] == 1
    assert (second["player_0_return_mean"], second["player_0_return_variance"]) == (-2.0, None)
    assert (second["player_0_return_se"], second["player_0_recent_se"]) == (None, None)


def test_games_before_a_reset_are_in_rows_of_their_own() -> None:
    payoffs = Payoffs(PAIR, live=["main"])
    payoffs.add(Game(("main", "main@1"), (1.0, 0.0), env_steps=1))
    payoffs.reset("main", incarnation=0)
    payoffs.add(Game(("main", "main@1"), (0.0, 1.0), env_steps=1))
    rows = payoff_table({"train": payoffs}).to_pylist()
    assert [(row["past"], row["player_0_return_mean"]) for row in rows] == [(None, 0.0), ("main:0", 1.0)]


def test_three_players_agree_with_a_naive_count(tmp_path: Path) -> None:
    sides = default_sides(["player_0", "player_1", "player_2"])
    payoffs, generator = Payoffs(sides), np.random.default_rng(3)
    played: dict[tuple[str, ...], list[tuple[float, ...]]] = {}
    for _ in range(300):
        profile = tuple(generator.choice(["a", "b"], 3).tolist())
        returns = tuple(float(value) for value in generator.integers(-1, 2, 3))
        payoffs.add(Game(profile, returns, env_steps=2))
        played.setdefault(profile, []).append(returns)
    write_payoffs(tmp_path / "payoffs.parquet", {"match": payoffs})
    rows = pq.read_table(tmp_path / "payoffs.parquet").to_pylist()
    assert {tuple(row[f"player_{i}_member"] for i in range(3)): row["games"] for row in rows} == {
        profile: len(games) for profile, games in played.items()
    }
    for row in rows:
        profile = tuple(row[f"player_{i}_member"] for i in range(3))
        for i in range(3):
            returns_of_role = [returns[i] for returns in played[profile]]
            assert row[f"player_{i}_return_mean"] == pytest.approx(statistics.mean(returns_of_role))
            assert row[f"player_{i}_return_variance"] == pytest.approx(statistics.variance(returns_of_role))
        for i, j in ((0, 1), (0, 2), (1, 2)):
            won = sum(returns[i] > returns[j] for returns in played[profile]) if profile[i] != profile[j] else 0
            assert row[f"player_{i}_against_player_{j}_wins"] == won


def test_a_league_without_games_is_a_table_without_rows(tmp_path: Path) -> None:
    write_payoffs(tmp_path / "payoffs.parquet", {"train": Payoffs(PAIR), "match": Payoffs(PAIR)})
    read = pq.read_table(tmp_path / "payoffs.parquet")
    assert read.num_rows == 0
    assert "player_1_return_se" in read.column_names


def test_a_failed_write_keeps_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "payoffs.parquet"
    write_payoffs(path, {"train": Payoffs(PAIR)})
    before = path.read_bytes()

    def full(_: object, where: Path) -> None:
        where.write_bytes(b"half")
        raise OSError(28, "no space left")

    monkeypatch.setattr(module.pq, "write_table", full)
    with pytest.raises(OSError, match="no space left"):
        write_payoffs(path, {"train": Payoffs(PAIR)})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["payoffs.parquet"]
