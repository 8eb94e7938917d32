# The demo's agent as AgentCore runs it: /invocations and /ping on port 8080. AgentCore wants linux/arm64:
#   docker buildx build --platform linux/arm64 -f deploy/images/agent.Dockerfile -t math-agent .
# An agent of your own needs only `pip install "rollway[shim]"` in its own image.
FROM python:3.12-slim AS build
WORKDIR /src
COPY deploy/envs/agent.txt pins.txt
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY services/rollway_shim/ services/rollway_shim/
RUN pip wheel --no-cache-dir --constraint pins.txt --wheel-dir /wheels ".[shim]" strands-agents openai

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "rollway[shim]" strands-agents openai \
    && rm -r /wheels && useradd --create-home --uid 10001 agent
COPY deploy/demo/agent/ /app/
USER agent
WORKDIR /app
ENV HOST=0.0.0.0 PYTHONUNBUFFERED=1
EXPOSE 8080
CMD ["python", "rl_app.py"]
