"""The list of skills for a model's context: within a token budget, and escaped.

`render` returns the text, and `FrozenListing` keeps it for a conversation and
returns later changes. Nothing here fetches, asks or loads.
"""
