"""Scripts of loaded skills: what the user is told of a run, who runs it, and what the model sees of it."""
