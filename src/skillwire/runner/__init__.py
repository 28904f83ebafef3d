"""Run a skill's scripts without trusting them.

Each script runs in a sandbox of its own, with nothing of this machine but its
interpreter, and has ended before its outcome is returned. Where no sandbox is
available, nothing runs. This package has no way to run a script without a
sandbox, and does not decide who may run which script: a server or a host does.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.runner.interface import ScriptInterface, ScriptRun
    from skillwire.runner.outcome import (
        Ending,
        LimitHit,
        Outcome,
        OutputFile,
        Recorder,
        RunRecord,
        SkippedOutput,
        Usage,
    )
    from skillwire.runner.policy import (
        Interpreter,
        Limits,
        Policy,
        PolicyError,
        ScriptRule,
        SecretSource,
        load_policy,
        parse_policy,
    )
    from skillwire.runner.preparation import (
        ReadFile,
        RunSlot,
        find_script,
        interfaces_of,
        prepare,
        scripts_of,
    )
    from skillwire.runner.runner import Runner
    from skillwire.runner.sandbox.sandbox import Availability
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "interface": "ScriptInterface ScriptRun",
            "outcome": "Ending LimitHit Outcome OutputFile Recorder RunRecord SkippedOutput Usage",
            "policy": "Interpreter Limits Policy PolicyError ScriptRule SecretSource "
            "load_policy parse_policy",
            "preparation": "ReadFile RunSlot find_script interfaces_of prepare scripts_of",
            "runner": "Runner",
            "sandbox.sandbox": "Availability",
        },
    )

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
    "RunSlot",
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
