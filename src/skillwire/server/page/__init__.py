"""The page for people: a catalog to look through, and every skill to read before an agent does.

Plain HTML that works without script, on a phone and with a keyboard. All it
shows is a stranger's text, so nothing of it ever becomes markup, runs, or
makes a browser ask another machine. Who may see what was decided before: the
page knows the skills it is given and no others.
"""

from skillwire.server.page.app import PageApp

__all__ = ["PageApp"]
