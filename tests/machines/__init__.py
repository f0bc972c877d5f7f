"""Machines in our own words: a page of facts each (``*.toml``), and what their kernels and lscpu would print.

The recorded dumps of real machines cannot be kept here (their licence is another one); these pages state the same kinds
of hardware and the same traps. `page` reads a page, `render` writes the texts, and the page is the truth that the facts
parsed from those texts are held against.
"""
