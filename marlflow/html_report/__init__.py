"""`marlflow report`: compare finished and running runs on one page that needs no network."""
