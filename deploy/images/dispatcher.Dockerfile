# The dispatcher. Its state is one SQLite file in /state: mount a volume there to keep batches over a new container.
#   docker build -f deploy/images/dispatcher.Dockerfile -t rollway-dispatcher .
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/envs/dev.txt pins.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY services/rollway_dispatcher/ services/rollway_dispatcher/
RUN pip wheel --no-cache-dir --constraint pins.txt --wheel-dir /wheels ".[dispatcher]"

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rollway[dispatcher]" \
    && rm -r /wheels && useradd --create-home --uid 10001 rollway && install -d -o rollway /state
USER rollway
WORKDIR /home/rollway
VOLUME /state
# Other machines can reach it, so it wants ROLLWAY_DISPATCHER_API_KEY.
ENV ROLLWAY_DISPATCHER_HOST=0.0.0.0 ROLLWAY_DISPATCHER_PORT=8800 \
    ROLLWAY_DISPATCHER_STATE_PATH=/state/dispatcher.sqlite3 PYTHONUNBUFFERED=1
EXPOSE 8800
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8800/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "rollway_dispatcher"]
