"""Hearing every generation of the wire: one `Voice` for each dialect a server may speak.

A voice turns what its dialect says into entries and bytes, and knows nothing
of approvals, caches or models. What a dialect cannot promise is missing from
the entry, never made up; the rest of the host then treats the skill as what it is.
"""
