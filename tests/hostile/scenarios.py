"""Every scenario by name, from the modules that hold them."""

from hostile import byname, exhaustion, integrity, liveness, naming, packed, persistence, prompts
from hostile.honest import SCENARIOS

MODULES = (byname, exhaustion, integrity, liveness, naming, packed, persistence, prompts)

__all__ = ["MODULES", "SCENARIOS"]
