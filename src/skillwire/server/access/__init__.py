"""Who asks, and what they may see: decided once for each request, before anything is looked up.

A credential becomes a `Caller`, the rules turn a caller into a `Sight`, and the
sight picks the view that answers: a server of its own that holds no other
skills than those in sight. So what a caller may not see is not hidden from an
answer; it is not there. Nothing here knows what a skill contains.
"""
