"""Coverage-guided fuzzing of the readers with atheris: ``python -m tests.fuzz.coverage_guided TARGET SECONDS``.

The corpus stays in ``.work/fuzz/TARGET``; what made it crash is written beside it. Exit status 0: nothing did.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rollway_gateway", "rollway_kit"]):
    from tests.fuzz.targets import TARGETS

SEEDS = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"logprobs":true,"tools":[]}',
    b'{"model":"m","prompt":["a"],"echo":true,"stream_options":{"include_usage":true}}',
    b'{"model":"m","max_tokens":5,"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],'
    b'"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]}]}',
    b'{"choices":[{"index":0,"delta":{"content":"x"},"token_ids":[1],"logprobs":{"content":[{"logprob":-1.0}]},'
    b'"finish_reason":"stop","message":{"content":"x"},"text":"x"}],"usage":{"prompt_tokens":1,"completion_tokens":1},'
    b'"prompt_token_ids":[1]}',
)
"""The JSON parser is not instrumented, so nothing would lead from random bytes to a first body that it takes."""


def main() -> None:
    name, seconds = sys.argv[1], sys.argv[2]
    corpus = Path(".work/fuzz") / name
    corpus.mkdir(parents=True, exist_ok=True)
    for k, seed in enumerate(SEEDS):
        (corpus / f"seed-{k}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={corpus}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
