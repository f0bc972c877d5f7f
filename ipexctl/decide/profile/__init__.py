"""Traces and reports of ranks become one `Profile` and one trace."""
