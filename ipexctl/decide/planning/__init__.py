"""Stack, trees, commands → plans: ordered steps whose text is the dry run."""
