"""The probe command of a host, and the parser of its output → Facts."""
