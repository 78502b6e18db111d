"""Learners, and the stages that estimate and learn."""
