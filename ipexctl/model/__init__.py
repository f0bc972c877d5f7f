"""The words: frozen data that every other room speaks in. Imports nothing of ipexctl outside this room."""
