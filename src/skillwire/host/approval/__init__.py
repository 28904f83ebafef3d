"""What the user agreed to: asked once, bound to content, remembered here or pinned in a project's lock."""
