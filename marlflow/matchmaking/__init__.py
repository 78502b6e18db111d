"""Who plays whom: matchmakers, and the dealer that gives their matchups to rollout workers."""
