"""What the page is told of a run, while it grows, ends, is killed, resumed, or damaged."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from filelock import FileLock

from marlflow.base.errors import InvalidInput
from marlflow.cli.options import Arguments
from marlflow.cli.watch import run_watch
from marlflow.runs.run_state import LOCK, LOST, write_state
from marlflow.watch import server
from marlflow.watch.followed import MOST_POINTS, Curve, FollowedRun
from tests.html_report.written import config, policy, report, write_run


def written(folder: Path, *env_steps: int) -> Path:
    return write_run(folder, [report(steps, {"prey": policy(trained=steps / 10)}) for steps in env_steps], config())


def append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def curves(followed: FollowedRun) -> dict[tuple[str, str], list[tuple[int, float]]]:
    pictures = followed.details()["curves"]
    return {(picture["title"], line["name"]): line["points"] for picture in pictures for line in picture["series"]}


def test_reports_are_added_as_they_are_written(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100, 200)
    followed = FollowedRun(run, "run")
    assert followed.read()
    assert not followed.read()
    assert curves(followed)["return", "prey"] == [(100, 10.0), (200, 20.0)]
    line = json.dumps(report(300, {"prey": policy(trained=30.0)}))
    append(run, line[:40])
    followed.read()
    assert len(curves(followed)["return", "prey"]) == 2
    append(run, line[40:] + "\n")
    assert followed.read()
    assert curves(followed)["return", "prey"][-1] == (300, 30.0)
    assert followed.summary()["env_steps"] == 300
    assert followed.summary()["of_env_steps"] == 3000


def test_an_evaluation_is_shown_at_its_own_env_steps(tmp_path: Path) -> None:
    evaluations = [policy(evaluated=1.0, at=40), policy(), policy(evaluated=3.0, at=300)]
    reports = [report(steps, {"prey": values}) for steps, values in zip((100, 200, 300), evaluations, strict=True)]
    followed = FollowedRun(write_run(tmp_path / "run", reports, config()), "run")
    followed.read()
    assert curves(followed) == {("return in evaluation", "prey"): [(40, 1.0), (300, 3.0)]}


def test_a_resumed_run_loses_what_it_has_dropped(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100, 200, 300)
    followed = FollowedRun(run, "run")
    followed.read()
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:1]), encoding="utf-8")
    assert followed.read()
    assert curves(followed)["return", "prey"] == [(100, 10.0)]


def test_a_resumed_run_that_has_grown_past_what_was_read_is_read_again(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100, 200, 300)
    followed = FollowedRun(run, "run")
    followed.read()
    kept = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]
    again = [json.dumps(report(steps, {"prey": policy(trained=7.0)})) + "\n" for steps in (200, 300, 400, 500)]
    with (run / "metrics.jsonl").open("r+", encoding="utf-8") as file:
        file.truncate()
        file.write(kept + "".join(again))
    assert followed.read()
    points = [(100, 10.0), (200, 7.0), (300, 7.0), (400, 7.0), (500, 7.0)]
    assert curves(followed)["return", "prey"] == points


def test_shares_of_a_run_that_has_ended_are_of_all_its_time(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100, 400)
    write_state(run, "finished", "stop.env_steps=400")
    followed = FollowedRun(run, "run")
    followed.read()
    # In 4 seconds of 400 env steps the stage worked for one and waited for room for two.
    collect = followed.details()["plan"][0]["rows"][0][0]
    assert (collect["label"], collect["busy"], collect["blocked"]) == ("Collect", 0.25, 0.5)
    assert followed.summary()["env_steps_per_s"] == 100.0
    assert followed.summary()["state"] == "finished"


def test_the_plan_has_the_queue_and_where_stages_run(tmp_path: Path) -> None:
    followed = FollowedRun(written(tmp_path / "run", 100), "run")
    followed.read()
    (rollouts, prey) = followed.details()["plan"]
    assert (rollouts["title"], prey["title"]) == ("rollouts, in rounds", "prey: ppo")
    queue, learn = prey["rows"][0]
    assert queue["queue"]
    assert (learn["label"], learn["at"], learn["busy"]) == ("Learn(epochs=4)", "at learner prey", None)


def test_infos_and_losses_named_like_a_return_have_curves_of_their_own(tmp_path: Path) -> None:
    infos = {"return": 0.5, "entropy": 0.6, "a | b": 0.7}
    values = {"prey": {**policy(trained=1.0), "infos": infos}}
    learners = {"learners": {"prey": {"updates": 4, "loss": {"entropy": 0.8}}}}
    followed = FollowedRun(write_run(tmp_path / "run", [report(100, values, **learners)], config()), "run")
    followed.read()
    titles = ("return", 1.0), ("return (info)", 0.5), ("entropy (info)", 0.6), ("entropy (loss)", 0.8), ("a | b", 0.7)
    assert curves(followed) == {(title, "prey"): [(100, value)] for title, value in titles}
    assert followed.summary()["returns"] == [{"title": "return", "series": [{"name": "prey", "points": [(100, 1.0)]}]}]


def test_a_policy_whose_name_begins_with_that_of_another_has_its_own_stages(tmp_path: Path) -> None:
    stages = {f"{plan}/Learn": {"items": items} for plan, items in (("prey", 100), ("prey-2", 300))}
    policies = {name: policy(trained=1.0) for name in ("prey", "prey-2")}
    run = write_run(tmp_path / "run", [report(100, policies, stages=stages)], config())
    plan = (run / "plan.mmd").read_text(encoding="utf-8")
    (run / "plan.mmd").write_text(plan.replace("prey: ppo", "prey-2: ppo"), encoding="utf-8")
    followed = FollowedRun(run, "run")
    followed.read()
    (learn,) = (one for row in followed.details()["plan"][1]["rows"] for one in row if one["label"].startswith("Learn"))
    assert (followed.details()["plan"][1]["title"], learn["items_per_s"]) == ("prey-2: ppo", 300.0)


def test_a_running_run_shows_how_full_its_queues_are(tmp_path: Path) -> None:
    values = {"stages": {"prey/queue": {"items": 9, "waiting": 3}}}
    run = write_run(tmp_path / "run", [report(100, {"prey": policy(trained=1.0)}, **values)], config())
    write_state(run, "running")
    followed = FollowedRun(run, "run")
    with FileLock(run / LOCK):
        followed.read()
        queue, learn = followed.details()["plan"][1]["rows"][0]
        assert (queue["label"], queue["waiting"], queue["capacity"]) == ("queue(4)", 3, 4)
        assert (learn["waiting"], learn["capacity"]) == (None, None)
    followed.read()
    assert followed.details()["plan"][1]["rows"][0][0]["waiting"] is None


def test_a_killed_run_says_so(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100)
    write_state(run, "running")
    followed = FollowedRun(run, "run")
    followed.read()
    assert (followed.summary()["state"], followed.summary()["reason"]) == ("interrupted", LOST)


def test_a_run_without_reports_and_damaged_lines_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100)
    (run / "metrics.jsonl").write_text('{"env_steps": 5\n[]\n{"env_steps": "x"}\n', encoding="utf-8")
    followed = FollowedRun(run, "run")
    followed.read()
    assert followed.summary()["env_steps"] == 0
    assert curves(followed) == {}
    (run / "metrics.jsonl").unlink()
    assert FollowedRun(run, "run").read()


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100)
    (run / "run.log").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidInput):
        FollowedRun(run, "run")


def test_a_long_curve_is_thinned_and_has_its_last_point() -> None:
    curve = Curve()
    for steps in range(10_001):
        curve.add(steps, float(steps))
        assert curve.points[-1][0] == steps
    assert MOST_POINTS / 2 <= len(curve.kept) <= MOST_POINTS
    assert {b[0] - a[0] for a, b in pairwise(curve.kept)} == {curve.every} == {32}


def test_a_file_that_is_gone_or_replaced_is_read_again(tmp_path: Path) -> None:
    run, other = written(tmp_path / "run", 100, 200), written(tmp_path / "other", 700, 800, 900)
    followed = FollowedRun(run, "run")
    followed.read()
    (run / "metrics.jsonl").unlink()
    followed.read()
    (other / "metrics.jsonl").replace(run / "metrics.jsonl")
    assert followed.read()
    assert [steps for steps, _ in curves(followed)["return", "prey"]] == [700, 800, 900]


def test_a_number_that_is_none_for_a_float_is_left_out(tmp_path: Path) -> None:
    run = written(tmp_path / "run", 100)
    append(run, f'{{"env_steps": {"9" * 400}}}\n')
    followed = FollowedRun(run, "run")
    followed.read()
    assert followed.summary()["env_steps"] == 100


def test_the_command_leaves_out_runs_whose_files_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "runs" / "good", 100)
    bad = written(tmp_path / "runs" / "bad", 100)
    (bad / "metrics.jsonl").rename(tmp_path / "elsewhere.jsonl")
    (bad / "metrics.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    served: list[str] = []
    monkeypatch.setattr(server, "serve", lambda made, port, say: served.extend(run.name for run in made.runs))
    options = {"control": False, "port": 0}
    assert run_watch(Arguments([str(tmp_path / "runs")], options)) == 0
    assert served == ["good"]
    said = capsys.readouterr().err
    assert "leads out of" in said
    assert said.endswith("the run is left out\n")
    with pytest.raises(InvalidInput, match="leads out of"):
        run_watch(Arguments([str(bad)], options))
