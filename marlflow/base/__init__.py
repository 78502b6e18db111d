"""Shared foundations: errors, arrays, spaces, ranges, schedules, random streams and serialization."""
