"""All skills of all origins, known from listings and folders alone, each under one reference."""
