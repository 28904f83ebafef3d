"""Clients for every version of the protocol: one `DialectClient` for each dialect a server may use.

A client converts the server's answers to entries and bytes, and knows nothing
of approvals, caches or models. What a dialect does not provide, such as
digests, is missing from the entry and never invented.
"""
