"""What several verbs share: selecting and probing hosts, verbs inside verbs."""
