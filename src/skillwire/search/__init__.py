"""Full-text search in skills, for servers and hosts: words of texts and queries, and an index of them."""
