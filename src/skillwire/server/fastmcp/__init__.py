"""Skills on a FastMCP server: a provider of resources, and an extension with the methods.

Every read of a skill's file goes the way of any FastMCP resource, through the
server's middleware, transforms, visibility rules and authorization. What these
hide as a resource is not shown as a skill either: `skills/list`, `skills/get`,
`resources/directory/read` and completion leave out a skill whose `SKILL.md`
the caller could not look up. A middleware has a say in that if it implements
`check_resource_access`, as `AuthMiddleware` does; one that only overrides
`on_read_resource` or `on_list_resources` decides about reads or about the list
of resources, and about nothing else. All files of a skill bear its name, so
`server.disable(names={"refunds"})` hides the skill as a whole.

A server with skills can be mounted without a namespace. A namespace would
rename the resources and not the digests' URIs, so with one the parent does not
start. In a tree of servers, one may have skills. A FastMCP proxy passes on the
resources that are listed and does not declare the extension.
"""

from skillwire.server.fastmcp.serving import attach

__all__ = ["attach"]
