"""Speed budgets, measured as ratios to a floor in the same run.

A floor does the same input and output and nothing else. Every measurement runs
in a process of its own, ours and the floor taking turns, and the median of the
ratios of neighbouring runs counts: neighbours share most of a machine's noise.

`source` is about reading folders, `start` about the first answer of a server,
`server` about answering from folders, `host` about listing what a server
answers, `runner` about scripts in sandboxes, and `peers` puts other people's
skill servers beside ours.
"""
