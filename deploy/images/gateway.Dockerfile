# The gateway, beside the inference servers. Its journal is in /state: mount a volume there to keep sessions over a new
# container. Build from the repository's root:
#   docker build -f deploy/images/gateway.Dockerfile -t rollway-gateway .
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/envs/dev.txt pins.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY services/rollway_gateway/ services/rollway_gateway/
RUN pip wheel --no-cache-dir --constraint pins.txt --wheel-dir /wheels ".[gateway]"

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rollway[gateway]" \
    && rm -r /wheels && useradd --create-home --uid 10001 rollway && install -d -o rollway /state
USER rollway
WORKDIR /home/rollway
VOLUME /state
# Other machines can reach it, so it wants ROLLWAY_GATEWAY_KEY_SECRET and ROLLWAY_GATEWAY_ADMIN_KEY.
ENV ROLLWAY_GATEWAY_HOST=0.0.0.0 ROLLWAY_GATEWAY_PORT=8700 ROLLWAY_GATEWAY_ADMIN_PORT=8701 \
    ROLLWAY_GATEWAY_JOURNAL_DIR=/state/journal PYTHONUNBUFFERED=1
EXPOSE 8700
EXPOSE 8701
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8700/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "rollway_gateway"]
