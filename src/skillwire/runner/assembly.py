"""From a run and a policy to what a sandbox takes, and from what comes out to an outcome."""

import logging
import os
import secrets
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from skillwire.core.characters import quoted
from skillwire.core.manifest import digest_of
from skillwire.errors import RunnerError
from skillwire.runner.arguments import argv_for, encode
from skillwire.runner.audit import RunRecord
from skillwire.runner.outcome import Ending, LimitHit, Outcome, OutputFile
from skillwire.runner.policy import Interpreter, Limits, Policy
from skillwire.runner.proxy import AllowListProxy
from skillwire.runner.redaction import Redactor
from skillwire.runner.run import ScriptRun
from skillwire.runner.sandbox.command import ENVIRONMENT
from skillwire.runner.sandbox.conversing import Job, Raw
from skillwire.runner.sandbox.interpreters import PYTHON_SUFFIX
from skillwire.runner.text import shown_text, structured_from

logger = logging.getLogger(__name__)

PROXY_URL = "http://127.0.0.1:3128"
MAX_SECRET = 64 * 1024
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
_TOLERANCE = 4096


class _Proxied:
    """The way out of one run: starts the proxy once the sandbox hands over where to listen."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self._proxy: AllowListProxy | None = None

    def start(self, listener: socket.socket) -> None:
        self._proxy = AllowListProxy(listener, self._allowed)
        self._proxy.start()

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()

    @property
    def traffic(self) -> str:
        """What went through it, for the audit: hosts and numbers."""
        if self._proxy is None:
            return ""
        seen = self._proxy.traffic
        refused = " ".join(f"{why}={count}" for why, count in sorted(seen.refusals.items()))
        words = (*seen.reached, f"up={seen.up_bytes}", f"down={seen.down_bytes}", refused)
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A run that is ready for a sandbox, with what it was granted."""

    run: ScriptRun
    run_id: str
    job: Job
    redactor: Redactor
    network: tuple[str, ...]
    proxied: _Proxied | None

    def outcome(self, raw: Raw) -> Outcome:
        """Turn what came out into something that can be shown."""
        limits = self.job.limits
        exit_code = None if raw.status is None else os.waitstatus_to_exitcode(raw.status)
        number = -exit_code if exit_code is not None and exit_code < 0 else None
        limit = raw.limit or _limit_of_signal(number, raw, limits)
        is_whole = raw.usage.stdout_bytes == len(raw.stdout)
        return Outcome(
            run_id=self.run_id,
            ending=Ending.LIMIT if limit else Ending.SIGNALLED if number else Ending.EXITED,
            exit_code=None if number or limit else exit_code,
            signal=number,
            limit=limit,
            reached=tuple(_reached(raw, limits)),
            stdout=self._text(raw.stdout, raw.usage.stdout_bytes, limits.stdout_bytes),
            stderr=self._text(raw.stderr, raw.usage.stderr_bytes, limits.stderr_bytes),
            structured=structured_from(raw.stdout, redactor=self.redactor) if is_whole else None,
            files=tuple(
                OutputFile(self.redactor.redact_text(file.path), self.redactor.redact(file.content))
                for file in raw.files
            ),
            skipped=tuple(replace(one, path=self.redactor.redact_text(one.path)) for one in raw.skipped),
            usage=raw.usage,
            limits=limits,
        )

    def record(
        self,
        outcome: str,
        detail: str = "",
        *,
        raw: Raw | None = None,
        seconds: float,
        is_pooled: bool = False,
    ) -> RunRecord:
        """Return the line that stays of this run."""
        return RunRecord(
            run_id=self.run_id,
            origin=self.run.origin,
            skill=self.run.skill,
            script=self.run.script,
            script_digest=self.run.digest,
            arguments_digest=digest_of(self.job.stdin),
            approval=self.run.approval,
            limits=_limits_line(self.job.limits),
            secrets=tuple(sorted(self.job.secrets)),
            network=self.network,
            traffic=self.proxied.traffic if self.proxied else "",
            outcome=outcome,
            detail=detail,
            duration_seconds=round(seconds, 6),
            cpu_seconds=round(raw.usage.cpu_seconds, 6) if raw else 0.0,
            memory_bytes=raw.usage.memory_bytes if raw else 0,
            is_pooled=is_pooled,
        )

    def _text(self, raw: bytes, total: int, keep: int) -> str:
        return shown_text(raw, total=total, keep=keep, redactor=self.redactor)


def assemble(run: ScriptRun, policy: Policy, interpreters: Mapping[str, Interpreter]) -> Assembled:
    """Put together what a sandbox takes: limits as far as granted, secrets, a way out, and the bytes.

    Raises:
        RunnerError: There is no interpreter, or a secret cannot be had.
    """
    suffix = PurePosixPath(run.script).suffix
    interpreter = interpreters.get(suffix)
    if interpreter is None:
        raise RunnerError(
            f"there is no interpreter for {quoted(run.script)}",
            script=run.script,
            fix=f"scripts may end in {', '.join(sorted(interpreters))}",
        )
    limits = policy.limits.asked(run.interface.limits, policy.most)
    rule = policy.rule_for(origin=run.origin, skill=run.skill, script=run.script, digest=run.digest)
    granted: dict[str, bytes] = {}
    network: tuple[str, ...] = ()
    if rule is not None:
        granted = {
            name: _value(name, run.script, rule.secrets[name]())
            for name in run.interface.secrets
            if name in rule.secrets
        }
        network = tuple(host for host in run.interface.network if host in rule.network)
    environment = dict(ENVIRONMENT)
    if network:
        environment |= dict.fromkeys(_PROXY_VARIABLES, PROXY_URL)
    proxied = _Proxied(network) if network else None
    job = Job(
        script=f"/skill/{run.script}",
        files=run.files,
        stdin=encode(run.arguments),
        limits=limits,
        address_space=max(interpreter.address_space, 2 * limits.memory_bytes),
        environment=environment,
        command=() if suffix == PYTHON_SUFFIX else (str(interpreter.path), *interpreter.arguments),
        argv=argv_for(run.arguments, run.interface),
        secrets=granted,
        network=proxied,
    )
    redactor = Redactor(granted)
    if redactor.too_short:
        logger.warning("too short to be taken out of what scripts say: %s", ", ".join(redactor.too_short))
    return Assembled(run, secrets.token_urlsafe(16), job, redactor, network, proxied)


def record_of_refusal(run: ScriptRun, error: RunnerError) -> RunRecord:
    """Return the line that stays of a run that did not come about."""
    return RunRecord(
        run_id=secrets.token_urlsafe(16),
        origin=run.origin,
        skill=run.skill,
        script=run.script,
        script_digest=run.digest,
        arguments_digest=digest_of(encode(run.arguments)),
        approval=run.approval,
        limits="",
        secrets=(),
        network=(),
        outcome=error.refusal,
        detail=str(error),
        duration_seconds=0.0,
        cpu_seconds=0.0,
        memory_bytes=0,
        is_pooled=False,
    )


def _value(name: str, script: str, value: bytes) -> bytes:
    if len(value) > MAX_SECRET:
        raise RunnerError(f"the secret {quoted(name)} is larger than {MAX_SECRET} bytes", script=script)
    return value


def _limit_of_signal(number: int | None, raw: Raw, limits: Limits) -> LimitHit | None:
    """Return the limit that the kernel enforces with this signal."""
    if number == signal.SIGXCPU:
        return LimitHit("cpu_seconds", limits.cpu_seconds, raw.usage.cpu_seconds)
    if number == signal.SIGXFSZ:
        return LimitHit("disk_bytes", limits.disk_bytes, raw.usage.disk_bytes)
    return None


def _reached(raw: Raw, limits: Limits) -> list[LimitHit]:
    """Return the limits that a run came up against without being stopped there."""
    used = raw.usage
    found = [
        LimitHit("processes", limits.processes, used.processes)
        if used.processes >= limits.processes
        else None,
        LimitHit("disk_bytes", limits.disk_bytes, used.disk_bytes)
        if used.disk_bytes > limits.disk_bytes - _TOLERANCE
        else None,
        LimitHit("disk_files", limits.disk_files, used.disk_files)
        if used.disk_files >= limits.disk_files
        else None,
        LimitHit("stdout_bytes", limits.stdout_bytes, used.stdout_bytes)
        if used.stdout_bytes > limits.stdout_bytes
        else None,
        LimitHit("stderr_bytes", limits.stderr_bytes, used.stderr_bytes)
        if used.stderr_bytes > limits.stderr_bytes
        else None,
    ]
    reasons = {skipped.reason for skipped in raw.skipped}
    if "there are more files than may be returned" in reasons:
        found.append(LimitHit("output_files", limits.output_files, limits.output_files + len(raw.skipped)))
    if "there are more bytes than may be returned" in reasons:
        found.append(LimitHit("output_bytes", limits.output_bytes, used.disk_bytes))
    return [hit for hit in found if hit is not None]


def _limits_line(limits: Limits) -> str:
    return (
        f"wall={limits.wall_seconds:g}s cpu={limits.cpu_seconds:g}s memory={limits.memory_bytes} "
        f"processes={limits.processes} disk={limits.disk_bytes}/{limits.disk_files} "
        f"output={limits.output_bytes}/{limits.output_files}"
    )
