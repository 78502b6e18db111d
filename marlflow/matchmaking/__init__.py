"""Assign policies to agents in each episode: matchmakers, and the dealer that sends matchups to rollout workers."""
