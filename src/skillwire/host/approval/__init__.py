"""User approvals: bound to content, stored on this machine or pinned in a project's lock."""
