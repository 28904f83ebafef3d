"""Skills on a FastMCP server: a provider of resources, and an extension with the methods.

Files of skills are read like any FastMCP resource, through the server's
middleware, transforms, visibility rules and authorization. A skill whose
`SKILL.md` is hidden from the caller as a resource is also left out of
`skills/list`, `skills/get`, `resources/directory/read` and completion. A
middleware takes part in that if it implements `check_resource_access`, as
`AuthMiddleware` does; one that only overrides `on_read_resource` or
`on_list_resources` only affects reads or the list of resources. All files of a
skill have its name, so `server.disable(names={"refunds"})` hides the whole
skill.

A server with skills can be mounted without a namespace. A namespace would
rename the resources but not the URIs of the digests, so the parent refuses to
start with one. In a tree of servers, only one may have skills. A FastMCP proxy
forwards the listed resources and does not declare the extension.
"""

from skillwire.server.fastmcp.provider import attach

__all__ = ["attach"]
