# The proxy and the command line alone: no torch, no engine, no trainer. From the root of the repository:
#   docker build -f docker/proxy.Dockerfile -t mosaic-proxy .
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/mosaic
COPY requirements/proxy.txt requirements/proxy.txt
RUN /opt/mosaic/bin/pip install --no-cache-dir --no-deps -r requirements/proxy.txt
COPY pyproject.toml README.md LICENSE ./
COPY mosaic mosaic
COPY adapters adapters
COPY proxy proxy
COPY trainer trainer
RUN /opt/mosaic/bin/pip install --no-cache-dir --no-deps .

FROM python:3.12-slim-bookworm
# Journal and SQLite's file lie in /data/var: mount a volume there, for the journal must survive its container.
RUN useradd --uid 10001 --create-home mosaic && mkdir -p /data/var && chown -R mosaic /data
COPY --from=build /opt/mosaic /opt/mosaic
ENV PATH=/opt/mosaic/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /data
EXPOSE 8080
# Answers without a key once calls are served, and looks at nothing else.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/', timeout=4)"]
ENTRYPOINT ["mosaic"]
# Any address but loopback needs keys: MOSAIC_API_KEYS='["..."]', or the file mosaic_api_keys in /run/secrets.
CMD ["serve", "--host", "0.0.0.0"]
