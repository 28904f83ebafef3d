"""Many upstream servers, of any generation, served as one that keeps to the released extension.

The only room that sees both halves: it hears servers as a host does and
publishes what they have as a source does. It approves nothing and judges
nothing; whoever uses the skills is told where they come from.
"""

from skillwire.gateway.gateway import Gateway
from skillwire.gateway.upstream import Upstream

__all__ = ["Gateway", "Upstream"]
