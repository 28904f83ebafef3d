"""Every scenario by name, from the modules that hold them."""

from hostile import byname, exhaustion, integrity, liveness, naming, packed, persistence, prompts, telling
from hostile.honest import SCENARIOS

MODULES = (byname, exhaustion, integrity, liveness, naming, packed, persistence, prompts, telling)

__all__ = ["MODULES", "SCENARIOS"]
