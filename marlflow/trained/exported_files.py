"""Write a PortableActor to a file, and run that file."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from errno import EISDIR
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.base.files import replacing
from marlflow.base.progress import progress
from marlflow.policy.tensors import as_tensor
from marlflow.trained.portable import PortableActor

Session = Callable[[Mapping[str, Array]], dict[str, Array]]
"""Runs an exported file: outputs by name for inputs by name."""
_EXTRA = ("onnx", "onnxscript")


@contextmanager
def written(portable: PortableActor, file: Path, format: str) -> Iterator[Session]:
    """Write `portable` as `onnx` or `pt2`, and yield a session that runs the file.

    The file gets its name when the block ends; after an exception there is none, or the earlier one. Raises
    ConfigInvalid if a package is missing or the file cannot be written, MarlflowError if the network cannot be
    converted.
    """
    missing = [name for name in _EXTRA if find_spec(name) is None] if format == "onnx" else []
    if missing:
        raise ConfigInvalid(
            [f"an export to ONNX needs {' and '.join(missing)}: pip install 'marlflow[onnx]'; format=pt2 does not"]
        )
    progress("tracing the network")
    program = _program(portable)
    progress(f"writing {file.name}")
    write = _onnx if format == "onnx" else _pt2
    with ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_dir():
                raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
            session = write(portable, program, stack.enter_context(replacing(file)))
        except OSError as error:
            raise ConfigInvalid([f"{file} cannot be written: {error.strerror or error}"]) from error
        yield session


def _program(portable: PortableActor) -> Any:
    arguments = tuple(portable.example(3))
    batch = torch.export.Dim("batch")
    try:
        # With gradients on, dense layers compute in torch alone; without gradients, numpy does a part, which would not
        # be exported.
        with torch.enable_grad(), _quiet():
            shapes = (tuple({0: batch} for _ in arguments),)
            return torch.export.export(portable, arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise MarlflowError(
            f"the network cannot be exported: {type(error).__name__}: {reason[0] if reason else ''}"
        ) from error


def _onnx(portable: PortableActor, program: Any, file: Path) -> Session:
    names = [port.name for port in portable.inputs]
    try:
        with _quiet():
            converted: Any = torch.onnx.export(
                program,
                (),
                dynamo=True,
                external_data=False,
                input_names=names,
                output_names=portable.outputs,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = str(cause).strip().splitlines()[0]
        raise MarlflowError(f"the network cannot be converted to ONNX, but perhaps to format=pt2: {reason}") from error
    for value in (*converted.model.graph.inputs, *converted.model.graph.outputs):
        # Named by a number otherwise.
        value.shape[0] = "batch"
    converted.save(str(file), external_data=False)
    return _onnx_session(file)


def _onnx_session(file: Path) -> Session:
    if find_spec("onnxruntime") is not None:
        import onnxruntime

        session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
    else:
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(str(file))
        names = list(session.output_names)
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _pt2(portable: PortableActor, program: Any, file: Path) -> Session:
    # In memory first: torch's own writer ends in a traceback of C++ if the disk is full.
    encoded = io.BytesIO()
    torch.export.save(program, encoded)
    file.write_bytes(encoded.getbuffer())
    # A buffer: torch wants files to end in .pt2, and this one gets its name once it is compared.
    module = torch.export.load(io.BytesIO(file.read_bytes())).module()
    names = [port.name for port in portable.inputs]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            outputs = module(*(as_tensor(inputs[name]) for name in names))
        return {name: output.numpy() for name, output in zip(portable.outputs, outputs, strict=True)}

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    # The exporter logs packages that it does not find, and warns of its own deprecated calls.
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
