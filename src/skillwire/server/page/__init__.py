"""The web page for people: a catalog to browse, and every skill to read.

Plain HTML that works without scripts, on a phone and with a keyboard. The text
of skills is untrusted: it is never used as markup, executed, or able to make a
browser contact another host. Access is decided before: the page only has the
skills that its caller may see.
"""

from skillwire.server.page.app import PageApp

__all__ = ["PageApp"]
