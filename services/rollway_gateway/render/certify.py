"""Proves a template: probes what it renders after an answer, picks the bridge that keeps most, states what holds.

python -m rollway_gateway certify MODEL_FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rollway_gateway.render.bridge import Bridge, DifferenceBridge, Drift, DriftReason, History, array_of
from rollway_gateway.render.certificate import Case, Certificate, Reasoning, Tools
from rollway_gateway.render.families import FamilyBridge, candidates
from rollway_gateway.render.messages import Message
from rollway_gateway.render.probes import PROBES, Probe
from rollway_gateway.render.template import Options, Refused, Template
from rollway_gateway.tree.messages import ExactTurn
from rollway_wire.problems import RollwayError

_BASIC = ("user message", "tool result")
"""Exact mode is worth having where at least one of these appends."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A certificate with the bridge it speaks of; None in mirror mode."""

    certificate: Certificate
    bridge: Bridge | None


def certify(model: str | Path | Template, *, history: History = "faithful") -> Certificate:
    """What the chat template of a model folder (or a loaded template) promises.

    A folder without a usable tokenizer or template gets a mirror certificate that says why.
    """
    return prove(model, history=history).certificate


def prove(model: str | Path | Template, *, history: History = "faithful") -> Proof:
    """As `certify`, with the bridge to use."""
    try:
        template = model if isinstance(model, Template) else Template.load(model)
    except RollwayError as e:
        return Proof(Certificate(model=str(model), mode="mirror", why=e.detail, history=history), None)
    facts = Certificate(
        model=template.name,
        mode="mirror",
        why="",
        history=history,
        template_sha256=template.sha256,
        reasoning=_reasoning(template),
        tools=_tools(template),
    )
    closer = _closer(template)
    if closer is None:
        why = "no single token ends an answer in the rendering, so there is no seam to append at"
        return Proof(replace(facts, why=why), None)
    facts = replace(
        facts,
        closer=template.vocabulary.token_of(closer),
        closer_id=closer,
        closer_stops=closer in template.vocabulary.stop_ids,
        glue=_glue(template, closer),
    )
    return _best(facts, template, closer)


def _best(facts: Certificate, template: Template, closer: int) -> Proof:
    """The bridge that appends in most cases; a family where it does at least as well."""
    found: list[tuple[Bridge, Literal["turn", "session"], list[Case]]] = []
    for window in _WINDOWS:
        plain = DifferenceBridge(template, window=window, history=facts.history, closers=frozenset({closer}))
        cases = _cases(template, plain, closer)
        if not _diverge(cases):
            found.append((plain, window, cases))
            families = [f for f in candidates(template, facts.history, plain) if _parity(template, f)]
            proven = ((f, window, _cases(template, f, closer)) for f in families)
            found += [(f, w, cases) for f, w, cases in proven if not _diverge(cases)]
            break
    if not found:
        why = "what the template renders after an answer depends on more than can be rendered apart"
        return Proof(replace(facts, why=why), None)
    bridge, window, cases = max(reversed(found), key=lambda f: sum(c.appends for c in f[2]))
    facts = replace(facts, cases=tuple(cases), append_only=all(c.appends for c in cases), window=window)
    if not any(c.appends for c in cases if c.follows in _BASIC):
        return Proof(replace(facts, why=f"nothing can be appended to an answer: {cases[0].detail}"), None)
    why = "every probe appends" if facts.append_only else "appends, except: " + "; ".join(
        f"{c.follows} ({c.reason})" for c in cases if not c.appends
    )  # fmt: skip
    return Proof(replace(facts, mode="exact", bridge=bridge.name, why=why), bridge)


_DIVERGES = "diverges"
_WINDOWS: tuple[Literal["turn", "session"], ...] = ("turn", "session")


def _diverge(cases: list[Case]) -> bool:
    return any(c.reason == _DIVERGES for c in cases)


def _cases(template: Template, bridge: Bridge, closer: int) -> list[Case]:
    return [_case(template, bridge, probe, closer) for probe in PROBES]


def _case(template: Template, bridge: Bridge, probe: Probe, closer: int) -> Case:
    """Extends a stand-in for the sampled answer, and holds the appended ids against the template's full rendering."""
    try:
        prompt = template.prompt_ids(probe.history, probe.options)
        whole = template.prompt_ids([*probe.history, probe.answer, *probe.new], probe.options)
    except Refused as e:
        return Case(follows=probe.name, appends=False, reason=DriftReason.REFUSED.value, detail=e.detail)
    sampled = template.vocabulary.encode("Sampled.") + array_of([closer])
    got = bridge.extend(
        ExactTurn("probe", None, prompt, sampled, probe.answer), probe.history, probe.new, probe.options
    )
    if isinstance(got, Drift):
        return Case(follows=probe.name, appends=False, reason=got.reason.value, detail=got.detail)
    if whole[len(whole) - len(got) :] != got:
        return Case(follows=probe.name, appends=False, reason=_DIVERGES, detail="the full rendering ends otherwise")
    return Case(follows=probe.name, appends=True)


def _parity(template: Template, family: FamilyBridge) -> bool:
    """Whether a family renders every probe that the template renders, id by id."""
    for probe in PROBES:
        for messages in (probe.history, [*probe.history, probe.answer, *probe.new]):
            try:
                expected = template.prompt_ids(messages, probe.options)
            except Refused:
                continue
            try:
                if family.prompt_ids(messages, probe.options) != expected:
                    return False
            except Exception:  # noqa: BLE001 - foreign code: a family that cannot render a probe is not this model's
                return False
    return True


def _between(template: Template, answer: Message, new: Message, options: Options) -> str | None:
    """The text between the last ``MARKa`` and ``MARKb``; None where the template refuses or shows neither."""
    try:
        text = template.text([{"role": "user", "content": "Question"}, answer, new], options)
    except Refused:
        return None
    head, found, tail = text.rpartition("MARKa")
    return tail.partition("MARKb")[0] if head and found and "MARKb" in tail else None


def _closer(template: Template) -> int | None:
    """The first special token after an answer's text, if nothing but white space comes before it."""
    between = _between(
        template, {"role": "assistant", "content": "MARKa"}, {"role": "user", "content": "MARKb"}, Options()
    )
    for token_id in template.vocabulary.encode(between or ""):
        if token_id in template.vocabulary.added_ids:
            return token_id
        if template.vocabulary.decode([token_id]).strip():
            return None
    return None


def _marked_call() -> tuple[Message, Message, Options]:
    probe = next(p for p in PROBES if p.name == "tool result")
    call = probe.answer["tool_calls"][0]
    marked = {**call, "function": {**call["function"], "arguments": {"word": "MARKa"}}}
    return {**probe.answer, "tool_calls": [marked]}, {**probe.new[0], "content": "MARKb"}, probe.options


def _glue(template: Template, closer: int) -> str:
    between = _between(template, *_marked_call()) or ""
    text, found, _ = between.partition(template.vocabulary.token_of(closer))
    return text if found else ""


def _tools(template: Template) -> Tools:
    answer, result, options = _marked_call()
    try:
        text = template.text([{"role": "user", "content": "Question"}, answer, result], options)
    except Refused:
        return "refused"
    return "shown" if "MARKa" in text else "ignored"


def _reasoning(template: Template) -> Reasoning:
    def shown(name: str) -> bool:
        probe = next(p for p in PROBES if p.name == name)
        try:
            return "I think." in template.text([*probe.history, probe.answer, *probe.new], probe.options)
        except Refused:
            return False

    if shown("user message after reasoning"):
        return "kept"
    return "kept within a tool cycle" if shown("tool result after reasoning") else "never shown"


def report(certificate: Certificate) -> str:
    """The certificate for a person to read."""
    c = certificate
    lines = [
        f"{c.model}: {c.mode} mode",
        f"  why         {c.why}",
    ]
    if c.template_sha256:
        stops = "" if c.closer_stops else "  (not among the engine's stop tokens: have generation stop there)"
        lines += [
            f"  template    sha256 {c.template_sha256[:16]}",
            f"  appended by {c.bridge or 'nothing'}; history {c.history}; looks at the {c.window}",
            f"  closer      {c.closer!r} = {c.closer_id}{stops}" if c.closer else "  closer      none",
            f"  tool calls  {c.tools}; between arguments and closer {c.glue!r}",
            f"  reasoning   {c.reasoning}",
        ]
    for case in c.cases:
        verdict = "appends" if case.appends else f"branches: {case.reason}: {case.detail}"
        lines.append(f"  {case.follows:<38} {verdict}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Prints the certificate of a model folder. 0: exact, 1: mirror, 2: no such folder."""
    parser = argparse.ArgumentParser(prog="rollway_gateway certify", description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="folder with tokenizer.json, tokenizer_config.json and a chat template")
    parser.add_argument(
        "--history",
        choices=("faithful", "continuous"),
        default="faithful",
        help="faithful: branch where the template drops reasoning; continuous: keep all of it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    if not Path(args.model).is_dir():
        sys.stderr.write(f"{args.model} is not a folder: certify takes a local model folder\n")
        return 2
    certificate = certify(args.model, history=args.history)
    sys.stdout.write((json.dumps(certificate.as_json(), indent=2) if args.json else report(certificate)) + "\n")
    return 0 if certificate.mode == "exact" else 1
