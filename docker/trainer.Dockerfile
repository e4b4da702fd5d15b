# Training on a GPU. torch's wheels carry CUDA: the host needs NVIDIA's driver and container toolkit only.
#   docker build -f docker/trainer.Dockerfile -t mosaic-trainer .
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/mosaic
COPY requirements/cpu.txt requirements/torch.txt requirements/
COPY pyproject.toml README.md LICENSE ./
COPY mosaic mosaic
COPY adapters adapters
COPY proxy proxy
COPY trainer trainer
# The versions of the lock, with the CUDA build of the same torch; what that build brings along is not pinned by us.
RUN sed 's/+cpu$//' requirements/torch.txt > requirements/cuda.txt && \
    /opt/mosaic/bin/pip install --no-cache-dir -c requirements/cpu.txt -c requirements/cuda.txt '.[train,postgres]'

FROM python:3.12-slim-bookworm
# torch compiles kernels when it is asked to, which takes a C compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home mosaic && \
    mkdir -p /data/var /checkpoints && chown -R mosaic /data /checkpoints
COPY --from=build /opt/mosaic /opt/mosaic
ENV PATH=/opt/mosaic/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MOSAIC_TRAIN__OUTPUT=/checkpoints
USER 10001
WORKDIR /data
# It listens to nothing: what can be asked is whether it finds the database.
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s --retries=3 CMD ["mosaic", "policy", "list"]
ENTRYPOINT ["mosaic"]
CMD ["schedule", "--when-scored", "256"]
