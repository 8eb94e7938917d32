# The AgentCore emulator, for tests of a deployment without an account. It runs each session as a process, so this image
# also holds the demo agent's environment, apart from its own, in /opt/agent.
#   docker build -f deploy/images/emulator.Dockerfile -t rollway-emulator .
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/envs/dev.txt pins.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY deploy/rollway_emulator/ deploy/rollway_emulator/
RUN pip wheel --no-cache-dir --constraint pins.txt --wheel-dir /wheels ".[emulator]"

FROM python:3.12-slim AS agent
WORKDIR /src
COPY deploy/envs/agent.txt pins.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY services/rollway_shim/ services/rollway_shim/
RUN python -m venv /opt/agent \
    && /opt/agent/bin/pip install --no-cache-dir --constraint pins.txt ".[shim]" strands-agents openai

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rollway[emulator]" \
    && rm -r /wheels && useradd --create-home --uid 10001 rollway && install -d -o rollway /state
COPY --from=agent /opt/agent /opt/agent
COPY deploy/demo/agent/ /agents/math/
COPY deploy/images/agents.json /agents/agents.json
USER rollway
WORKDIR /home/rollway
VOLUME /state
ENV ROLLWAY_EMULATOR_HOST=0.0.0.0 ROLLWAY_EMULATOR_PORT=8900 ROLLWAY_EMULATOR_AGENTS=/agents/agents.json \
    ROLLWAY_EMULATOR_STATE_DIR=/state PYTHONUNBUFFERED=1
EXPOSE 8900
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8900/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "rollway_emulator"]
