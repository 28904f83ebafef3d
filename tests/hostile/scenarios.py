"""Every scenario by name, from the modules that hold them."""

from hostile import integrity, liveness, naming, prompts
from hostile.honest import SCENARIOS

MODULES = (integrity, liveness, naming, prompts)

__all__ = ["MODULES", "SCENARIOS"]
