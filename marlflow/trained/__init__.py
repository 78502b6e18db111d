"""Loads trained policies: act, watch, and play against them."""
