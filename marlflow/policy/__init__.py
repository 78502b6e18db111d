"""Networks and actors: trained, random and scripted policies."""
