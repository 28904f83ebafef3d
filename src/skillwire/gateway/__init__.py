"""Many upstream servers, of any dialect, served as one in the released extension.

The only package that uses both `host` and `sources`: it connects to servers as
a host does and publishes their skills as a source does. It approves and
validates nothing on behalf of the user; each entry names its upstream.
"""

from skillwire.gateway.gateway import Gateway, Upstream

__all__ = ["Gateway", "Upstream"]
