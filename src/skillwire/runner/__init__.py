"""Running a skill's scripts without trusting them.

A script runs in a sandbox of its own, with nothing of this machine but its
interpreter, and is gone before its outcome is known. Where no sandbox can be
had, nothing runs. What never lives here: a way to run a script without one,
and any idea of who may run which (that is for a server or a host to decide).
"""

from skillwire.runner.audit import Recorder, RunRecord
from skillwire.runner.availability import Availability
from skillwire.runner.interface import ScriptInterface
from skillwire.runner.outcome import Ending, LimitHit, Outcome, OutputFile, SkippedOutput, Usage
from skillwire.runner.policy import Interpreter, Limits, Policy, ScriptRule, SecretSource
from skillwire.runner.policyfile import PolicyError, load_policy, parse_policy
from skillwire.runner.preparing import ReadFile, find_script, interfaces_of, prepare, scripts_of
from skillwire.runner.run import ScriptRun
from skillwire.runner.runner import Runner

__all__ = [
    "Availability",
    "Ending",
    "Interpreter",
    "LimitHit",
    "Limits",
    "Outcome",
    "OutputFile",
    "Policy",
    "PolicyError",
    "ReadFile",
    "Recorder",
    "RunRecord",
    "Runner",
    "ScriptInterface",
    "ScriptRule",
    "ScriptRun",
    "SecretSource",
    "SkippedOutput",
    "Usage",
    "find_script",
    "interfaces_of",
    "load_policy",
    "parse_policy",
    "prepare",
    "scripts_of",
]
