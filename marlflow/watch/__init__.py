"""Runs on a page that follows them: a small server on loopback that reads their folders and changes nothing."""
