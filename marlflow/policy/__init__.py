"""Networks and what acts with them: actors with parameters, random ones and scripted ones."""
