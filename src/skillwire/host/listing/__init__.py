"""The list of skills for a model's context: within a token budget, and escaped.

`render` in `rendering` returns the text, and `FrozenListing` in `frozen` keeps
it for a conversation and returns later changes. Nothing here fetches, asks or
loads.
"""
