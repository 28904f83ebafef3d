"""One small file per agent framework: listing, tools and gate in that framework's own form.

Each needs the extra of its framework, and nothing else here imports them, so
that a host works without any. What may be loaded, run or read is never decided
here: that stays with `Conversation` and `Guard`.
"""
