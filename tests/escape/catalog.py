"""All attacks, by what they are about."""

from collections.abc import Mapping

from escape.attack import Attack
from escape.attacks import (
    arguments,
    environment,
    files,
    filling,
    flooding,
    lasting,
    multiplying,
    network,
    outputs,
    processes,
    rights,
    sharing,
    signals,
)

OUTSIDE: Mapping[str, tuple[Attack, ...]] = {
    "files": files.ATTACKS,
    "descriptors": environment.DESCRIPTORS,
    "network": network.ATTACKS,
    "memory of others": processes.MEMORY,
    "namespaces": processes.NAMESPACES,
    "rights": rights.RIGHTS,
    "doors of the kernel": rights.DOORS,
    "sharing": sharing.ATTACKS,
}
CREDENTIALS: Mapping[str, tuple[Attack, ...]] = {
    "environment": environment.ENVIRONMENT,
    "secrets": environment.SECRETS,
}
LIMITS: Mapping[str, tuple[Attack, ...]] = {
    "processes": multiplying.PROCESSES,
    "daemons": multiplying.DAEMONS,
    "memory": filling.MEMORY,
    "time": lasting.TIME,
    "disk": flooding.DISK,
    "keepers": signals.ATTACKS,
}
ARGUMENTS: Mapping[str, tuple[Attack, ...]] = {"arguments": arguments.ATTACKS}
OUTPUTS: Mapping[str, tuple[Attack, ...]] = {"output files": outputs.FILES}
TEXTS: Mapping[str, tuple[Attack, ...]] = {"text": outputs.TEXT}

GROUPS = (OUTSIDE, CREDENTIALS, LIMITS, ARGUMENTS, OUTPUTS, TEXTS)
REPRESENTATIVES = frozenset(attacks[0].name for group in GROUPS for attacks in group.values())
"""One attack of each class, which every run of the tests tries; `scripts/test proof` tries all."""
ALL: tuple[Attack, ...] = tuple(one for group in GROUPS for attacks in group.values() for one in attacks)
