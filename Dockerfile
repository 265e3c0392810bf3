# A node of any kind, and the gateway: docker build -t cosine-p2p .
# With an NVIDIA card: docker build --build-arg TORCH_INDEX=https://pypi.org/simple -t cosine-p2p .
FROM python:3.11-slim AS build

# One of py-libp2p's dependencies has no wheel.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential libgmp-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/cosine
ENV PATH=/opt/cosine/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /src
COPY constraints.txt ./
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --extra-index-url "$TORCH_INDEX" --constraint constraints.txt torch

COPY pyproject.toml README.md LICENSE NOTICE ./
COPY cosine_p2p cosine_p2p
COPY node node
COPY protocol protocol
COPY tui tui
RUN pip install --constraint constraints.txt '.[light]' './node[torch]' ./node/train


FROM python:3.11-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends libgmp10 \
    && rm -rf /var/lib/apt/lists/*
# Volumes take their owner from the folders they are mounted over.
RUN useradd --create-home --uid 1000 cosine \
    && install --directory --owner cosine --group cosine /data /cache /swarm
COPY --from=build /opt/cosine /opt/cosine

# Identities, pinned targets and what a node has found out are kept in /data, models and tokenizers in /cache.
ENV PATH=/opt/cosine/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/data \
    XDG_STATE_HOME=/data/state \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface
USER cosine
WORKDIR /home/cosine
VOLUME ["/data", "/cache"]
EXPOSE 4001 8000
# SIGTERM drains a node: it withdraws its record and finishes what it has begun.
STOPSIGNAL SIGTERM
CMD ["cosine-node", "--help"]
