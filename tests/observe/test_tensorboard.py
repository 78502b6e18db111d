"""TensorBoard reads back what a run writes: numbers, the configuration, hyperparameters."""

from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from marlflow.observe.callback import RunEnd
from marlflow.observe.report import ResumePoint
from marlflow.observe.sinks import scalars
from marlflow.observe.tensorboard import TensorBoardSink
from tests.observe.records import INFO, record, tell

CONFIGURATION = {
    "seed": 3,
    "policies": {"agent": {"algorithm": {"_target_": "marlflow.DQN", "learning_rate": 0.5, "double": True}}},
    "faults": {"env_errors": 0},
}


def events(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulated(directory).Scalars(tag)]


def accumulated(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


def test_every_scalar_is_read_back_over_env_steps_as_soon_as_it_is_reported(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.began(INFO)
    for number in (1, 2, 3):
        sink.reported(record(number))
        steps = [step for step, _ in events(tmp_path, "policies/adversary/return_mean")]
        assert steps == [1000 * each for each in range(1, number + 1)]
    sink.ended(RunEnd("stop.env_steps=3000", record(3)))
    for tag, value in scalars(record(3)):
        assert events(tmp_path, tag)[-1] == (3000, pytest.approx(value)), tag


def test_each_evaluation_is_there_once_at_the_env_steps_at_which_it_was_made(tmp_path: Path) -> None:
    tell(TensorBoardSink(tmp_path), *map(record, (1, 2, 3, 4, 5)))
    assert events(tmp_path, "policies/agent/eval_return_mean") == [(1500, 7.25), (3500, 7.25)]
    assert events(tmp_path, "policies/agent/eval_against/random") == [(1500, 7.25), (3500, 7.25)]
    assert events(tmp_path, "run/eval_team_return_mean") == [(1500, 29.0), (3500, 29.0)]
    assert [step for step, _ in events(tmp_path, "policies/agent/return_std")] == [1000, 2000, 3000, 4000, 5000]


def test_what_a_resumed_run_makes_again_is_hidden(tmp_path: Path) -> None:
    tell(TensorBoardSink(tmp_path), *map(record, (1, 2, 3)))
    (kept,) = tmp_path.iterdir()
    kept.rename(tmp_path / "events.out.tfevents.0000000001.first")
    tell(TensorBoardSink(tmp_path), record(2), info=replace(INFO, resumed=ResumePoint(1000, 1)))
    assert events(tmp_path, "run/episodes") == [(1000, 10.0), (2000, 20.0)]


def test_the_configuration_is_text_and_its_values_are_hyperparameters(tmp_path: Path) -> None:
    tell(TensorBoardSink(tmp_path), record(1), info=replace(INFO, configuration=CONFIGURATION))
    read = accumulated(tmp_path)
    (text,) = read.Tensors("configuration/text_summary")
    assert '"learning_rate": 0.5' in text.tensor_proto.string_val[0].decode()
    contents = read.summary_metadata
    start = HParamsPluginData.FromString(
        contents["_hparams_/session_start_info"].plugin_data.content
    ).session_start_info.hparams
    assert start["policies.agent.algorithm.learning_rate"].number_value == 0.5
    assert start["policies.agent.algorithm._target_"].string_value == "marlflow.DQN"
    assert start["seed"].number_value == 3
    assert not [name for name in start if name.startswith("faults")]
    metrics = HParamsPluginData.FromString(contents["_hparams_/experiment"].plugin_data.content).experiment.metric_infos
    assert "policies/adversary/eval_return_mean" in {metric.name.tag for metric in metrics}


@pytest.mark.parametrize(("error", "is_finished"), [(None, True), ("ValueError: no", False)])
def test_a_session_is_finished_if_the_run_has_no_error(tmp_path: Path, error: str | None, is_finished: bool) -> None:
    tell(TensorBoardSink(tmp_path), record(1), info=replace(INFO, configuration=CONFIGURATION), error=error)
    assert ("_hparams_/session_end_info" in accumulated(tmp_path).summary_metadata) is is_finished


def test_a_run_without_a_report_leaves_no_event_file(tmp_path: Path) -> None:
    tell(TensorBoardSink(tmp_path))
    assert list(tmp_path.iterdir()) == []
