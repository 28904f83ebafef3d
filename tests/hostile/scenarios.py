"""Every scenario by name, from the modules that hold them."""

from hostile import byname, exhaustion, integrity, liveness, naming, persistence, prompts
from hostile.honest import SCENARIOS

MODULES = (byname, exhaustion, integrity, liveness, naming, persistence, prompts)

__all__ = ["MODULES", "SCENARIOS"]
