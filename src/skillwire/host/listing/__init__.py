"""The list of skills that goes into a model's context: within a budget, and safe to put there.

`render` in `rendering` makes the text, and `FrozenListing` in `frozen` keeps it
for a conversation and says later what changed. Nothing here fetches, asks or
loads.
"""
