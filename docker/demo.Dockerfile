# The whole chain on a CPU, for a look: agent, proxy, vLLM, TRL, reload. About 4 GB; two cores and 8 GB of memory.
#   docker build -f docker/demo.Dockerfile -t mosaic-demo . && docker run --rm --shm-size 1g mosaic-demo
FROM python:3.12-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libnuma1 make && \
    rm -rf /var/lib/apt/lists/* && useradd --uid 10001 --create-home mosaic
WORKDIR /mosaic
COPY --chown=10001 . .
RUN chown mosaic /mosaic
USER 10001
RUN make install
CMD ["make", "demo"]
