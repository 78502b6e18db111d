# marlflow on CPUs, with the versions of constraints.txt:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=<index of CPU builds> -t marlflow:0.1.0 .
#   docker run --rm --shm-size=2g -v "$PWD/runs:/work/runs" marlflow:0.1.0 marlflow train experiment=cartpole_team_ppo_dqn
# docs/install.md has what was tried.
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check "build>=1.2,<2" \
    && python -m build --wheel --outdir /wheel

FROM ${PYTHON}
# PyTorch's index of CPU builds; without it, the image has gigabytes of CUDA libraries.
ARG PIP_EXTRA_INDEX_URL=
ARG EXTRAS=mpe,watch
# ray[default]: clusters start the image, and `ray job submit` needs its job server.
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore -c /constraints.txt \
    "$(echo /wheel/*.whl)[${EXTRAS}]" "ray[default]" \
    && useradd --create-home --uid 1000 marlflow \
    && install -d -o marlflow /work /work/runs
USER 1000
WORKDIR /work
CMD ["marlflow", "--help"]
