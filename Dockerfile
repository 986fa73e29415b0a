# MCR-DL with PyTorch, MPICH and gloo. No registry has this image, and it has not been built yet: docs/releases.md says
# what was checked.
#   CPU:  docker build -t mcr-dl .
#   CUDA: docker build -t mcr-dl:cuda --build-arg TORCH_INDEX=https://pypi.org/simple --build-arg EXTRAS=mpich,cu13 .
# To try it: docker run --rm --shm-size 1g mcr-dl torchrun --nproc-per-node 2 -m mcr_dl.bench --backends all
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Where torch comes from: its builds for the CPU by default; PyPI has those for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --index-url "${TORCH_INDEX}" --extra-index-url https://pypi.org/simple "torch==2.13.*"

FROM base AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM base
ARG EXTRAS=mpich
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install "mcr-dl[${EXTRAS},completion] @ file://$(ls /wheels/*.whl)"
COPY tests/install/smoke.py /opt/mcr-dl/smoke.py
RUN useradd --create-home --uid 1000 user && torchrun --nproc-per-node 2 /opt/mcr-dl/smoke.py
USER 1000
WORKDIR /home/user
CMD ["mcr-info"]
