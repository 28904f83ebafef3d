"""What a server says of skills before anybody asks about them."""

from mcp.server.context import CallNext, HandlerResult

from skillwire.server.changes import connection_of
from skillwire.server.dialects.compat import Context
from skillwire.server.results import as_json
from skillwire.server.skills import Skills
from skillwire.wire.core import EXTENSION, SETTINGS, JsonDict
from skillwire.wire.prompt import PROMPTS_CHANGED


class HandshakeMiddleware:
    """Declares the extension in the legacy handshake, where the SDK leaves it out.

    The 2025-11-25 models of the SDK have no `extensions` among the
    capabilities, so the declaration is put back into the finished result. What
    older dialects declare has no place in the SDK's models of either revision.
    """

    def __init__(self, skills: Skills) -> None:
        self._skills = skills

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = await call_next(ctx)
        for compat in self._skills.compat:
            await compat.look_around(ctx)
        if ctx.method == "initialize" and ctx.request_id is not None:
            return self._declared(ctx, as_json(result))
        if ctx.method == "server/discover" and ctx.request_id is not None and self._skills.compat:
            found = as_json(result)
            capabilities: JsonDict = found.get("capabilities") or {}
            return {**found, "capabilities": {**capabilities, **self._of_dialects(told=False)}}
        if ctx.method == "notifications/initialized":
            self._skills.announcer.greet(connection_of(ctx))
        return result

    def _declared(self, context: Context, result: JsonDict) -> JsonDict:
        capabilities = dict(result.get("capabilities") or {})
        capabilities["extensions"] = {**(capabilities.get("extensions") or {}), EXTENSION: dict(SETTINGS)}
        resources = dict(capabilities.get("resources") or {})
        told = connection_of(context).has_standalone_channel
        resources["listChanged"] = resources["subscribe"] = told
        capabilities["resources"] = resources
        if any(PROMPTS_CHANGED in compat.notifications() for compat in self._skills.compat):
            capabilities["prompts"] = {**(capabilities.get("prompts") or {}), "listChanged": told}
        return {**result, "capabilities": {**capabilities, **self._of_dialects(told=told)}}

    def _of_dialects(self, *, told: bool) -> JsonDict:
        """Return what older dialects declare; two that share a capability share its members.

        Their notifications have no place on the streams of modern clients, so
        `listChanged` is declared where the client can be told.
        """
        found: JsonDict = {}
        for compat in self._skills.compat:
            for name, members in compat.capabilities().items():
                found[name] = {**found.get(name, {}), **members}
                if "listChanged" in found[name]:
                    found[name]["listChanged"] = told
        return found
