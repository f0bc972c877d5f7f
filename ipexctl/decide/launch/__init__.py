"""Hosts × Facts × Run → Launch: where ranks run, with which settings, and the command that starts them."""
