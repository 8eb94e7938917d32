"""`python -m rollway_shim run rl_app.py PAYLOAD`: one rollout here and now, its result as JSON on standard output."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from bedrock_agentcore.runtime import RequestContext
from starlette.exceptions import HTTPException

from rollway_shim.app import RolloutApp
from rollway_shim.invocation import read_invocation
from rollway_shim.rollout import Finished

_EPILOG = """\
Exit status: 0 the agent returned a result; 1 it failed, or its result could not be saved; 2 wrong usage;
130 interrupted. What the agent prints goes to standard error.
Nothing is saved unless PAYLOAD's _rollout names exp_id, input_id and s3_bucket."""


class _Usage(Exception):
    """Something in the command line cannot be used."""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        payload = _payload(args.payload, base_url=args.base_url, model_id=args.model_id)
        with _output_to_stderr():
            app = _load_app(Path(args.file), args.app)
            finished, status = _run(app, payload, args.session_id)
        _print(finished)
        return status
    except (_Usage, HTTPException) as e:
        sys.stderr.write(f"error: {e}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rollway_shim", description="Run an agent's rollout without a server."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="run one rollout", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run.add_argument("file", help="the agent's Python file, for example rl_app.py")
    run.add_argument("payload", help="the payload as JSON, @FILE, or - for standard input")
    run.add_argument("--app", metavar="NAME", help="the RolloutApp's variable, where the file has several")
    run.add_argument("--session-id", help="the rollout's session id (default: a new one)")
    run.add_argument("--base-url", help="sets _rollout.base_url, where the agent finds its model")
    run.add_argument("--model-id", help="sets _rollout.model_id")
    return parser


@contextlib.contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Send what anything in this process, or started by it, prints to standard error: descriptor 1, not just
    ``sys.stdout``, because tools run programs."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _payload(text: str, **rollout: str | None) -> dict[str, Any]:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        payload = json.loads(text)
    except OSError as e:
        raise _Usage(f"cannot read the payload: {e}") from e
    except ValueError as e:
        raise _Usage(f"the payload is not JSON: {e}") from e
    if not isinstance(payload, dict):
        raise _Usage(f"the payload must be a JSON object, got {type(payload).__name__}")
    given = {k: v for k, v in rollout.items() if v is not None}
    if given and isinstance(payload.setdefault("_rollout", {}), dict):
        payload["_rollout"].update(given)
    return payload


def _load_app(file: Path, name: str | None) -> RolloutApp:
    """The app in ``file``, imported as a module beside which its own imports work."""
    if not file.is_file():
        raise _Usage(f"no such file: {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise _Usage(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.resolve().parent))
    spec.loader.exec_module(module)
    found = {k: v for k, v in vars(module).items() if isinstance(v, RolloutApp)}
    if name is not None:
        if name not in found:
            raise _Usage(f"{file} has no RolloutApp named {name!r} (it has: {', '.join(found) or 'none'})")
        return found[name]
    if len(set(map(id, found.values()))) != 1:
        _ambiguous(file, list(found))
    return next(iter(found.values()))


def _ambiguous(file: Path, names: list[str]) -> NoReturn:
    if not names:
        raise _Usage(f"{file} makes no RolloutApp at module level")
    raise _Usage(f"{file} has several RolloutApps; choose one with --app: {', '.join(names)}")


def _run(app: RolloutApp, payload: dict[str, Any], session_id: str | None) -> tuple[Finished, int]:
    if app.rollout_handler is None:
        raise _Usage("the app has no function decorated with @app.rollout_entrypoint")
    invocation = read_invocation(payload, session_id or str(uuid.uuid4()))
    with _Interrupt() as interrupt:
        rollout = app.rollouts.begin(invocation, app.rollout_handler, RequestContext(session_id=invocation.session_id))
        assert rollout is not None  # a fresh process knows no other
        try:
            interrupt.raises()
            finished = rollout.finished.result()
            status = 0 if finished.document["status_code"] < 400 and finished.failure is None else 1
        except KeyboardInterrupt:
            app.rollouts.close(app.shutdown_grace_s)
            if not rollout.finished.done():  # S3 did not answer in time, which is in the log
                raise
            finished, status = rollout.finished.result(), 130
        else:
            app.rollouts.close(app.shutdown_grace_s)
    return finished, status


class _Interrupt:
    """Ctrl-C, noted until somebody is there who cancels the rollout: its agent may run before `begin` has returned."""

    def __init__(self) -> None:
        self._came = False
        self._raises = False

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGINT)
        if self._before is signal.default_int_handler:  # else somebody wants it ignored, or handles it
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        if self._raises:
            raise KeyboardInterrupt

    def raises(self) -> None:
        """From now on it raises, and now if it came before.

        Raises:
            KeyboardInterrupt: it came before.
        """
        self._raises = True
        if self._came:
            raise KeyboardInterrupt


def _print(finished: Finished) -> None:
    sys.stdout.write(json.dumps(finished.document, indent=2, ensure_ascii=False) + "\n")
    if finished.failure:
        sys.stderr.write(f"error: {finished.failure}\n")


if __name__ == "__main__":
    raise SystemExit(main())
