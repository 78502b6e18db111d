"""`marlflow report`: a page on runs from the command line, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlflow.base.return_units import RETURN
from tests.cli.conftest import Marlflow, content, table
from tests.cli.test_train import SHORT
from tests.html_report.written import config, policy, report, write_run, write_seeds


def test_seeds_of_a_sweep_are_one_group_and_a_resumed_run_another(marlflow: Marlflow, tmp_path: Path) -> None:
    evaluated = [word for word in SHORT if not word.startswith("evaluation")]
    evaluated += ["evaluation.episodes=2", "evaluation.every_env_steps=200", "hydra.sweep.dir=sweep"]
    assert marlflow("train", "-m", *evaluated, "seed=3,4").code == 0
    before = content(tmp_path / "sweep")
    said = marlflow("report", "sweep", "--out", "compared")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-2:] == [
        "wrote compared/index.html: 2 runs in 1 group",
        "wrote table.csv, improvement.csv, settings.csv, runs.csv, evaluations.csv, curves.csv, table.tex, "
        "marl_eval.json, report.json next to it",
    ]
    assert content(tmp_path / "sweep") == before
    runs = table(tmp_path / "compared" / "runs.csv")
    assert [(row["state"], row["reason"]) for row in runs] == [("finished", "stop.env_steps=400")] * 2
    (row,) = table(tmp_path / "compared" / "table.csv")
    finals = []
    for number in range(2):
        lines = (tmp_path / "sweep" / str(number) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        finals.append(json.loads(lines[-1])["policies"]["cart"]["eval_return_mean"])
    assert row["measure"] == "policies.cart.eval_return_mean"
    assert float(row["final_iqm"]) == pytest.approx(sum(finals) / 2)
    assert "seeds 3, 4" in (tmp_path / "compared" / "index.html").read_text(encoding="utf-8")

    assert marlflow("resume", "sweep/1", "stop.env_steps=600").code == 0
    said = marlflow("report", "sweep", "out=compared")
    assert said.out.splitlines()[-2] == "wrote compared/index.html: 2 runs in 2 groups"
    assert "env_steps=600" in said.out


def apart(said: str) -> tuple[list[str], list[str]]:
    """The notes, which come first, and the lines after them."""
    lines = said.splitlines()
    count = sum(line.startswith("note: ") for line in lines)
    return lines[:count], lines[count:]


def test_it_prints_final_returns_best_first_and_notes(marlflow: Marlflow, tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [[1.0], [2.0]], queue=1)
    write_seeds(tmp_path / "b", [[30.0]], queue="\x1b[31m2")
    (tmp_path / "a" / "broken" / "checkpoints").mkdir(parents=True)
    notes, others = apart(marlflow("report", "a", "b").out)
    assert notes[:2] == [
        "note: a/broken has no metrics.jsonl; a run writes it with its first report, unless log.jsonl=false was set; "
        "the run is left out",
        "note: 3 runs do not say whether they have ended. See the table of runs.",
    ]
    assert others[:4] == [
        f"policy prey (policies.prey.eval_return_mean), {RETURN['mean']}, mode not recorded; final mean [range]:",
        "  queue=?[31m2  30.00  n=1",
        "  queue=1       1.50 [1.00, 2.00]  n=2",
        "wrote report/index.html: 3 runs in 2 groups",
    ]


def test_groups_and_environments_can_be_chosen(marlflow: Marlflow, tmp_path: Path) -> None:
    for cycles in (5, 6):
        for queue in (1, 2):
            write_seeds(tmp_path / f"runs/{cycles}{queue}", [[1.0]], queue=queue, env={"max_cycles": cycles})
    lines = marlflow("report", "runs").out.splitlines()
    assert "wrote report/index.html: 4 runs in 4 groups" in lines
    lines = marlflow("report", "runs", "group_by=queue", "merge=max_cycles").out.splitlines()
    assert "wrote report/index.html: 4 runs in 2 groups" in lines
    assert [line.split()[0] for line in apart("\n".join(lines))[1][1:3]] == ["queue=1", "queue=2"]
    lines = marlflow("report", "runs", "--group-by", "queue,max_cycles", "--merge", "env").out.splitlines()
    assert "wrote report/index.html: 4 runs in 4 groups" in lines


def test_names_with_commas_are_told_apart(marlflow: Marlflow, tmp_path: Path) -> None:
    for x, mode in enumerate(("greedy", "greedy", "sampled")):
        of_run = report(1000, {"prey": {**policy(1.0, 1000), "eval_mode": mode}})
        write_run(tmp_path / "runs" / str(x), [of_run], config(x=x, rate=x, env={"max_cycles": 5}))
    write_seeds(tmp_path / "runs" / "other", [[1.0]], env={"max_cycles": 6})
    first, *_ = apart(marlflow("report", "runs").out)[1]
    assert first == (
        "cartpole_team, max_cycles=5: policy prey (policies.prey.eval_return_mean), return per agent and episode, "
        "greedy: 'x=0, rate=0', 'x=1, rate=1'; sampled: 'x=2, rate=2'; final value:"
    )


@pytest.mark.parametrize("words", [("returns=4,1e3",), ("--returns", "4", "--returns=1000")])
def test_returns_to_reach_can_be_given(marlflow: Marlflow, tmp_path: Path, words: tuple[str, ...]) -> None:
    write_seeds(tmp_path / "runs", [[1.0, 5.0]])
    assert marlflow("report", "runs", *words).code == 0
    (row,) = table(tmp_path / "report" / "table.csv")
    assert [float(row["level_1"]), float(row["level_2"])] == [4.0, 1000.0]
    assert (row["level_1_env_steps"], row["level_2_env_steps"]) == ("2000.0", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "report needs RUN: marlflow report RUN [RUN ...] [name=value ...]"),
        (("nowhere",), "there is no directory nowhere; give the directory of a run, or of several"),
        (("empty",), "empty is not the directory of a run, and no run is in it; a run has metrics.jsonl"),
        (("runs", "oot=x"), "marlflow report has no option 'oot'; did you mean 'out'?"),
        (("runs", "returns=much"), "returns must be a number, not 'much'"),
        (("runs", "out=runs/0/metrics.jsonl"), "out: runs/0/metrics.jsonl cannot be written to"),
        (("runs", "group_by=quue"), "group_by: no run has a key 'quue' in its configuration"),
        (("runs", "group_by="), "group_by needs a value: group_by=KEYS"),
        (("runs", "merge=seed"), "merge: 'seed' is not a key of env"),
        (("runs", "merge=size"), "merge: 'size' is a key of no run's env"),
        (("runs", "out=page"), "out: page/index.html is not a report of marlflow; choose another directory"),
    ],
)
def test_bad_input_is_one_error(marlflow: Marlflow, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    write_seeds(tmp_path / "runs", [[1.0]])
    (tmp_path / "empty").mkdir()
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("mine", encoding="utf-8")
    marlflow("report", *words).assert_refused(begins=sentence)
    assert not (tmp_path / "report").exists()
