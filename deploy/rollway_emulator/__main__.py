"""``python -m rollway_emulator --agents agents.json``: serve until SIGINT or SIGTERM, then leave no process behind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rollway_emulator.agents import AgentsFileError, load_agents
from rollway_emulator.app import create_app
from rollway_emulator.settings import EmulatorSettings
from rollway_kit import logs, serve
from rollway_kit.settings import load


def parser() -> argparse.ArgumentParser:
    """One flag per setting, from the settings class itself."""
    found = argparse.ArgumentParser(
        prog="python -m rollway_emulator",
        description="A local AgentCore Runtime: point an AWS SDK's bedrock-agentcore endpoint URL here.",
        epilog="Every flag is also an environment variable: ROLLWAY_EMULATOR_ and its name in capitals.",
    )
    for name, field in EmulatorSettings.model_fields.items():
        default = "" if field.is_required() or field.default is None else f" (default {field.default})"
        about = " ".join((field.description or "").split()).replace("%", "%%")
        found.add_argument(f"--{name.replace('_', '-')}", metavar="…", help=f"{about}{default}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    settings = load(EmulatorSettings, **vars(parser().parse_args(arguments)))
    try:
        agents = load_agents(settings.agents)
        logs.configure("emulator", settings.log_level, settings.log_json)
    except AgentsFileError as e:
        sys.stderr.write(f"refusing to start: ROLLWAY_EMULATOR_AGENTS: {e}\n")
        raise SystemExit(2) from e
    except ValueError as e:
        sys.stderr.write(f"refusing to start: ROLLWAY_EMULATOR_LOG_LEVEL: {e}\n")
        raise SystemExit(2) from e
    # A short drain: calls in flight belong to containers that are about to end.
    serve.run(create_app(settings, agents), settings, service="emulator", drain_s=1, lifespan="on")


if __name__ == "__main__":
    main()
