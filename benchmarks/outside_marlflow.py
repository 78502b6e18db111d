"""Runs an exported ONNX file in a process that can import onnxruntime, numpy, and what they need, and nothing else.

Arrays go through pipes in numpy's format: a length of eight bytes, then the arrays by name.
"""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from marlflow.base.arrays import Array
from marlflow.trained.exported_files import Session

_LENGTH = 8
# Modules that onnxruntime itself requires.
PROGRAM = """
import sys

# Modules that the interpreter has at its start, such as finders of packages that are installed in place.
BEFORE = set(sys.modules)
ALLOWED = {"numpy", "onnxruntime", "flatbuffers", "google", "packaging"}

class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, OnlyThese())
import io
import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
while length := sys.stdin.buffer.read(8):
    inputs = dict(np.load(io.BytesIO(sys.stdin.buffer.read(int.from_bytes(length, "big")))))
    buffer = io.BytesIO()
    np.savez(buffer, **dict(zip(names, session.run(names, inputs))))
    sys.stdout.buffer.write(len(buffer.getvalue()).to_bytes(8, "big") + buffer.getvalue())
    sys.stdout.buffer.flush()
others = {name.partition(".")[0] for name in set(sys.modules) - BEFORE} - ALLOWED - sys.stdlib_module_names
assert not others, others
"""


@contextmanager
def outside(file: Path, python: str = sys.executable) -> Iterator[Session]:
    """Yield what runs `file` in a process of `python`, isolated from the environment and the user's packages.

    Raises CalledProcessError at the end if that process failed, or has imported anything else.
    """
    words = [python, "-I", "-c", PROGRAM, str(file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            buffer = io.BytesIO()
            np.savez(buffer, **inputs)  # type: ignore[arg-type]
            stdin.write(len(buffer.getvalue()).to_bytes(_LENGTH, "big") + buffer.getvalue())
            stdin.flush()
            size = stdout.read(_LENGTH)
            return dict(np.load(io.BytesIO(stdout.read(int.from_bytes(size, "big"))))) if size else {}

        yield run
        stdin.close()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words[0])
