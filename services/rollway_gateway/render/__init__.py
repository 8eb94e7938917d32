"""Chat templates: rendered, extended without re-tokenising what was sampled, and proven. Pure and synchronous."""

from rollway_gateway.render.bridge import Bridge, DifferenceBridge, Drift, DriftReason, History
from rollway_gateway.render.certificate import Case, Certificate
from rollway_gateway.render.certify import Proof, certify, prove
from rollway_gateway.render.exact import ExactSession, Plan
from rollway_gateway.render.parity import disagreements, questions
from rollway_gateway.render.template import Options, Refused, Template

__all__ = [
    "Bridge",
    "Case",
    "Certificate",
    "DifferenceBridge",
    "Drift",
    "DriftReason",
    "ExactSession",
    "History",
    "Options",
    "Plan",
    "Proof",
    "Refused",
    "Template",
    "certify",
    "disagreements",
    "prove",
    "questions",
]
