"""The registry: all skills of all origins, from listings and folders alone, each under one reference."""
