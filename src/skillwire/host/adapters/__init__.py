"""Adapters, one module per agent framework: listing, tools and gate in that framework's own form.

Each needs the extra of its framework, and no other module imports them, so
that a host works without any. They make no decisions on what may be loaded,
run or read: `Conversation` and `Guard` do.
"""
