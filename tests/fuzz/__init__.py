"""Inputs of strangers against every parser: grammars whose texts are accepted, those texts damaged, and a corpus."""
